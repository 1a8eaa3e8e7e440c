// Pushes a model to the hub (docs/http.md describes the routes).  `element` is the component.
"use strict";
const WAIT = 500; // milliseconds between two looks at a push
const OVER = ["done", "failed", "cancelled"];
const { make, attempt } = window.ksRequests;
const call = (path, body) => attempt(`pushes${path}`, body);
const form = element.querySelector("form");
const $ = (selector) => element.querySelector(selector);
const state = { models: "", push: null };

function size(bytes) {
  const units = ["B", "kB", "MB", "GB"];
  let n = bytes, unit = 0;
  for (; n >= 1000 && unit < units.length - 1; unit++) n /= 1000;
  return `${unit ? n.toFixed(1) : n} ${units[unit]}`;
}

function say(tone, title, ...rest) {
  const note = make("div", `ks-note ks-${tone}`);
  note.append(make("b", "", title), ...rest);
  $(".pb-answer").replaceChildren(note);
}

async function load() {
  if (document.querySelector(".ks-viewer")) return;
  const { data, error } = await call("");
  if (error) return say("bad", error);
  $(".pb-reason").hidden = !data.reason;
  $(".pb-reason div").textContent = data.reason ?? "";
  const wanted = new URLSearchParams(location.search).get("model");
  if (JSON.stringify(data.models) !== state.models) {
    state.models = JSON.stringify(data.models);
    form.elements.model.replaceChildren(...data.models.map(({ id, name, role }) => {
      const option = make("option", "", name === id ? `${id} (${role})` : `${name}, ${id} (${role})`);
      option.value = id;
      return option;
    }));
    if (data.models.some(({ id }) => id === wanted)) form.elements.model.value = wanted;
  }
  const none = !data.models.length;
  for (const each of element.querySelectorAll(".pb-part, .pb-fields")) each.hidden = none;
  form.querySelector("button").disabled = none || Boolean(data.reason) || Boolean(state.push);
  if (none) say("info", "No trained model yet.", make("div", "", "Models appear here when they are trained."));
  else await plan();
}

async function plan() {
  const { data, error } = await call(`/plan/${encodeURIComponent(form.elements.model.value)}`);
  if (error) return say("bad", error);
  $(".pb-card pre").textContent = data.card;
  $(".pb-size").textContent = `${data.files.length} files, ${size(data.bytes)}`;
  $(".pb-files summary").textContent = `Files (${data.files.length})`;
  $(".pb-files ul").replaceChildren(...data.files.map(({ name, bytes }) => {
    const item = make("li", "", name);
    item.append(make("span", "", size(bytes)));
    return item;
  }));
}

function progress(push) {
  const text = {
    waiting: "Waiting for another push…", uploading: `Uploading ${size(push.sent)} of ${size(push.bytes ?? 0)}…`,
    committing: "Committing the files…",
  }[push.phase];
  let box = $(".pb-progress");
  if (!box) {
    box = make("div", "pb-progress");
    const stop = make("button", "ks-button", "Cancel");
    stop.type = "button";
    box.append(make("span"), make("progress"), stop);
    $(".pb-answer").replaceChildren(box);
  }
  box.querySelector("span").textContent = text;
  const bar = box.querySelector("progress");
  bar.ariaLabel = text;
  if (push.bytes) Object.assign(bar, { value: push.sent, max: push.bytes });
  box.querySelector("button").disabled = push.phase === "committing";
}

async function push() {
  const body = {
    model: form.elements.model.value, repository: form.elements.repository.value.trim(),
    private: form.elements.private.value === "true",
  };
  if (!body.repository) return say("bad", "Name a repository, such as my-lab/policy-3.");
  if (!body.private && !confirm(`Everybody will be able to download ${body.repository}. Push it as public?`)) return;
  const { data, error } = await call("", body);
  if (error) return say("bad", error);
  let now = data;
  state.push = now.id;
  form.querySelector("button").disabled = true;
  while (!OVER.includes(now.phase)) {
    progress(now);
    await new Promise((resolve) => setTimeout(resolve, WAIT));
    const { data: next, error: lost } = await call(`/${now.id}`);
    if (lost) {
      now = { phase: "failed", error: lost };
      break;
    }
    now = next;
  }
  state.push = null;
  if (now.phase === "cancelled") say("info", "Cancelled. The repository has no new commit.");
  else if (now.phase === "failed") say("bad", "The push failed.", make("div", "", now.error));
  else {
    const link = make("a", "", now.url);
    Object.assign(link, { href: now.url, target: "_blank", rel: "noopener noreferrer" });
    say("good", `${now.model} is on the hub, ${now.private ? "private" : "public"}: `, link);
  }
  form.querySelector("button").disabled = false;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  push();
});
form.elements.model.addEventListener("change", plan);
element.addEventListener("click", async (event) => {
  if (!event.target.closest(".pb-progress button") || !state.push) return;
  const { error } = await call(`/${state.push}/cancel`, {});
  if (error) say("warn", error);
});
// Again when the section is opened, with the models that were trained in between.
new IntersectionObserver(([entry]) => entry.isIntersecting && load()).observe(form);
