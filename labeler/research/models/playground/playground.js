// The playground (docs/http.md describes the routes).  `element` is the component.
"use strict";
const PLACE = "/research/api/playground";
const FULL = 1; // nats at which a token has the whole color
const NAMES = { ppo: "PPO", grpo: "GRPO", "reinforce++": "REINFORCE++", dpo: "DPO", rloo: "RLOO", "best-of-n": "best-of-N" };
const LOST = "The connection was lost. Ask again.";
const { make, attempt } = window.ksRequests;
const call = (path, body) => attempt(`playground${path}`, body);
const $ = (selector) => element.querySelector(selector);
const form = $(".pg-form");
const state = { models: [], reward: null, talk: [], replies: new Map(), stopped: null, prepared: "" };

const decimal = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
const about = ({ role, iteration, method }) =>
  role === "sft" ? "SFT" : [NAMES[method] ?? method, iteration && `iteration ${iteration}`].filter(Boolean).join(", ");
const chosen = () => [...element.querySelectorAll(".pg-models :checked")].map((box) => box.value);

async function load() {
  const { data, error } = await call("");
  const reason = error ?? data.reason;
  $(".pg-reason").hidden = !reason;
  $(".pg-reason div").textContent = reason ?? "";
  if (!data) return;
  $("[data-do=ask]").disabled = Boolean(reason) || Boolean(state.stopped);
  if (JSON.stringify(data.models) === JSON.stringify(state.models)) return;
  const before = state.models.length ? chosen() : data.chosen;
  const added = data.chosen.filter((id) => state.models.length && !state.models.some((each) => each.id === id));
  const checked = [...before, ...added].slice(-data.max_models);
  Object.assign(state, { models: data.models, most: data.max_models });
  $(".pg-models div").replaceChildren(...data.models.map((model) => {
    const label = make("label"), box = make("input");
    Object.assign(box, { type: "checkbox", value: model.id, checked: checked.includes(model.id) });
    label.append(box, make("span", "", model.id), make("small", "", about(model)));
    return label;
  }));
  limitModels();
}

function limitModels() {
  const full = chosen().length >= state.most;
  for (const box of element.querySelectorAll(".pg-models input")) box.disabled = full && !box.checked;
}

// Loaded while the prompt is being written, so that the first token comes at once.
function prepare() {
  const models = chosen();
  if (!models.length || !$(".pg-reason").hidden || state.prepared === models.join()) return;
  state.prepared = models.join();
  call("/prepare", { models });
}

function messages() {
  const system = form.elements.system.value.trim();
  return [
    ...(system ? [{ role: "system", content: system }] : []),
    ...state.talk,
    { role: "user", content: form.elements.prompt.value },
  ];
}

function showTalk() {
  $(".pg-talk").replaceChildren(...state.talk.map(({ role, content }) => {
    const turn = make("li");
    turn.dir = "auto";
    turn.append(make("b", "", role === "user" ? "User" : "Assistant"), content);
    return turn;
  }));
}

function say(text) {
  $(".pg-heard").textContent = text;
}

async function ask() {
  const models = chosen();
  if (!models.length) return say("Choose a model.");
  if (!form.elements.prompt.value.trim()) return say("Write a prompt first.");
  const { temperature, top_p, max_tokens, seed } = form.elements;
  const body = {
    messages: messages(), models, temperature: Number(temperature.value), top_p: Number(top_p.value),
    max_tokens: Number(max_tokens.value), seed: seed.value === "" ? null : Number(seed.value),
  };
  const stopped = (state.stopped = new AbortController());
  state.asked = body.messages;
  busy(true);
  say(`Asking ${models.join(", ")}…`);
  cards(models);
  let problem = null;
  try {
    const response = await fetch(`${PLACE}/replies`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      cache: "no-store", signal: stopped.signal,
    });
    if (response.ok) await read(response.body.getReader());
    else problem = (await response.json()).error;
  } catch (failure) {
    if (!(failure instanceof TypeError || stopped.signal.aborted)) throw failure;
    problem = stopped.signal.aborted ? "Stopped." : LOST;
  }
  state.stopped = null;
  busy(false);
  for (const reply of state.replies.values()) if (!reply.id) reply.text.classList.remove("pg-writing");
  if (![...state.replies.values()].some((reply) => reply.id || reply.said)) $(".pg-replies").replaceChildren();
  say(problem ?? `Done, with seed ${state.seed}.`);
}

async function read(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) hear(JSON.parse(line));
  }
}

function busy(is) {
  $("[data-do=ask]").disabled = is;
  $("[data-do=stop]").hidden = !is;
}

function hear(event) {
  if (event.event === "asked") {
    Object.assign(state, { seed: event.seed, reward: event.reward, reference: event.reference });
    return;
  }
  const reply = state.replies.get(event.model);
  if (event.event === "text") {
    reply.said += event.text;
    reply.text.append(event.text);
  } else if (event.event === "end") {
    Object.assign(reply, { id: event.id, finish: event.finish_reason, count: event.tokens });
    reply.text.classList.remove("pg-writing");
    if (!reply.said) reply.text.append(make("span", "ks-muted", "(empty reply)"));
    figures(reply, { });
    foot(reply);
  } else if (event.event === "measures") measured(reply, event);
  else if (event.event === "error") {
    reply.text.classList.remove("pg-writing");
    reply.card.append(make("p", "pg-error", event.error));
  }
}

function cards(models) {
  state.replies.clear();
  $(".pg-bar").hidden = false;
  $(".pg-replies").replaceChildren(...models.map((id) => {
    const card = make("article", "ks-card pg-reply"), title = make("h2", "", id), text = make("div", "pg-text pg-writing");
    card.setAttribute("aria-label", `Reply of ${id}`);
    const model = state.models.find((each) => each.id === id);
    title.append(make("span", "ks-badge", about(model)));
    text.dir = "auto";
    const numbers = make("dl", "pg-figures");
    card.append(title, text, numbers);
    state.replies.set(id, { card, text, numbers, said: "", id: null });
    return card;
  }));
  choose();
}

function figures(reply, { reward, audit, kl }) {
  const shown = [
    ["Reward", reward, state.reward ?? "no reward model yet"], ["Audit reward", audit, "by the audit model"],
    ["KL to SFT", kl, "nats, in the whole reply"],
  ].map(([name, value, title]) => [name, value === undefined ? "…" : value === null ? "–" : decimal(value), title]);
  shown.push(["Tokens", `${reply.count ?? "–"}${reply.finish === "length" ? ", cut off" : ""}`, ""]);
  reply.numbers.replaceChildren(...shown.map(([name, value, title]) => {
    const pair = make("div");
    pair.title = title;
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  }));
}

function measured(reply, { reward, audit, tokens, no_tokens: none }) {
  const kl = tokens.length ? tokens.reduce((sum, token) => sum + token.kl, 0) : null;
  figures(reply, { reward, audit, kl });
  if (none) reply.numbers.after(make("p", "ks-detail", none));
  if (!tokens.length) return;
  // A token that ends inside a character is shown with the one that completes it.
  const shown = [];
  let open = null;
  tokens.forEach((token, n) => {
    open = open ? { ...token, kl: open.kl + token.kl, logprob: open.logprob + token.logprob,
                    reference_logprob: open.reference_logprob + token.reference_logprob } : { ...token };
    const last = n === tokens.length - 1;
    if (open.text || last) {
      if (!open.text) Object.assign(open, { text: "end of text", end: true });
      shown.push(open);
      open = null;
    }
  });
  reply.text.replaceChildren(...shown.map((token) => {
    const span = make("span", token.end ? "pg-token pg-end" : "pg-token", token.end ? " end" : token.text);
    span.style.setProperty("--kl", Math.min(1, token.kl / FULL));
    span.dataset.kl = token.kl;
    span.dataset.tip = `KL ${decimal(token.kl, 3)} nats\nlog p ${decimal(token.logprob)}, SFT ${decimal(token.reference_logprob)}`;
    if (token.end) span.setAttribute("aria-hidden", "true");
    return span;
  }));
  reply.numbers.after(alternative(shown));
}

// The colors in words: the largest KL, and every value in a table.
function alternative(tokens) {
  const most = tokens.reduce((best, token) => (token.kl > best.kl ? token : best));
  const details = make("details", "pg-tokens"), table = make("table"), head = make("tr"), frame = make("div");
  const largest = `the largest KL is ${decimal(most.kl)} at “${most.text.trim() || most.text}”`;
  details.append(make("summary", "", `Tokens as a table; ${most.kl < 0.005 ? "no token differs from SFT" : largest}`));
  for (const name of ["Token", "KL, nats", "log p", "log p, SFT"]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const rows = tokens.map((token) => {
    const row = make("tr");
    const values = [token.kl, token.logprob, token.reference_logprob].map((value, n) => decimal(value, n ? 2 : 3));
    row.append(...[token.text, ...values].map((text) => make("td", "", text)));
    return row;
  });
  table.append(head, ...rows);
  frame.append(table);
  frame.tabIndex = 0;
  details.append(frame);
  return details;
}

function foot(reply) {
  const row = make("div", "pg-foot"), label = make("label"), box = make("input"), go = make("button", "ks-button", "Continue with this reply");
  Object.assign(box, { type: "checkbox", name: "chosen", value: reply.id });
  label.append(box, "Choose for a pair");
  Object.assign(go, { type: "button" });
  go.dataset.continue = reply.id;
  row.append(label, go);
  reply.card.append(row);
}

const pair = () => [...element.querySelectorAll("[name=chosen]:checked")].map((box) => box.value);

function choose() {
  const ids = pair();
  $("[data-do=send]").disabled = ids.length !== 2;
  for (const box of element.querySelectorAll("[name=chosen]")) box.disabled = ids.length >= 2 && !box.checked;
  $(".pg-sent").textContent = ids.length === 2 ? "" : "Choose two replies to send them as a pair.";
}

async function send() {
  $("[data-do=send]").disabled = true;
  const { data, error } = await call("/pairs", { replies: pair() });
  const learned = data?.learned_from ? "Models learn from the judgment; no figure counts it." : "The prompt is held-out or for the audit: no model learns from the judgment.";
  $(".pg-sent").textContent = error ?? (data.new ? `Sent to the annotators. ${learned}` : "These two replies were sent before.");
  $("[data-do=send]").disabled = Boolean(data);
}

function goOn(id) {
  const reply = [...state.replies.values()].find((each) => each.id === id);
  state.talk = [...state.asked.filter((turn) => turn.role !== "system"), { role: "assistant", content: reply.said }];
  form.elements.prompt.value = "";
  showTalk();
  form.elements.prompt.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!state.stopped && form.reportValidity()) ask();
});
form.elements.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.elements.prompt.addEventListener("focus", prepare);
element.addEventListener("change", ({ target }) => {
  if (target.closest(".pg-models")) limitModels();
  if (target.name === "chosen") choose();
  if (target.name === "colors") $(".pg-replies").classList.toggle("pg-colors", target.checked);
});
element.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  if (button.dataset.continue) goOn(button.dataset.continue);
  if (button.dataset.do === "stop") state.stopped?.abort();
  if (button.dataset.do === "send") send();
  if (button.dataset.do === "new") {
    state.talk = [];
    state.stopped?.abort();
    showTalk();
    $(".pg-replies").replaceChildren();
    $(".pg-bar").hidden = true;
    say("");
    form.elements.prompt.value = "";
    form.elements.prompt.focus();
  }
});
$(".pg-replies").classList.add("pg-colors");
// The models change when a stage ends; the section may be opened later.
new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && load()).observe(element);
setInterval(() => element.isConnected && element.offsetParent && !state.stopped && load(), 15000);
