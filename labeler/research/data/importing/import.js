// Import with a preview (docs/http.md describes the routes).  `element` is the component.  Everything
// from a file is shown as text.
"use strict";
const LOST = "The connection was lost. Try again.";
const WAIT = 400; // milliseconds between two looks at a job
const OVER = ["done", "failed", "cancelled"];
const PHASES = {
  waiting: "Waiting for another import",
  downloading: "Downloading from the hub",
  reading: "Reading and checking the rows",
};
const TITLES = {
  line: "Row", prompt: "Prompt", messages: "Prompt", response_a: "A", response_b: "B", chosen: "Chosen",
  rejected: "Rejected", "first response": "Response", "second response": "Response", response: "Response",
  "better response": "Better response",
};
const KINDS = {
  prompts: "prompt", completions: "response", comparisons: "pair", judgments: "judgment", annotators: "annotator",
  models: "model", withdrawals: "withdrawal", checks: "answer", exclusions: "exclusion",
};
const OUTCOMES = { a: "A is better", b: "B is better", tie: "Tie", both_bad: "Both bad" };
const { make, attempt } = window.ksRequests;
const call = (path, body) => attempt(`imports${path}`, body);
const form = element.querySelector("form");
const answer = element.querySelector(".im-answer");
const result = element.querySelector(".im-result");
const drop = element.querySelector(".im-drop");
// `job` runs now; `seen` is the preview that Import follows, `upload` the file that the server has.
const state = { job: null, request: null, upload: null, sent: null };

const titleOf = (name) => TITLES[name] ?? name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

function say(tone, title, text = "") {
  const note = make("div", `ks-note ks-${tone}`);
  note.append(make("b", "", title));
  if (text) note.append(make("div", "", text));
  answer.replaceChildren(note);
}

function chosenWhat() {
  const option = form.elements.what.selectedOptions[0];
  const [kind, source] = option.value.split(":");
  return { kind: kind || null, source: source || null, columns: option.dataset.columns, names: option.dataset.names };
}

function showWhat() {
  const { kind, columns, names } = chosenWhat();
  form.querySelector(".im-columns").textContent = kind ? `Columns: ${columns}.` : "";
  const field = form.querySelector(".im-names");
  field.hidden = !names;
  field.querySelector("small").textContent = names ? `Only for unusual names, one NAME=FIELD a line (--map in a terminal). ${names}.` : "";
  form.elements.role.disabled = kind === "sft";
}

function namesOfFields() {
  if (!chosenWhat().names) return {};
  const lines = form.elements.names.value.split("\n").map((line) => line.trim()).filter(Boolean);
  for (const line of lines) if (!/^[^=]+=.+$/.test(line)) throw new Error(`${line} must be NAME=FIELD, such as prompt=instruction.`);
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));
}

function progress(text, share, job) {
  const box = make("div", "im-progress");
  box.append(make("span", "", text));
  const bar = make("progress");
  bar.ariaLabel = text;
  if (share !== null) Object.assign(bar, { value: share, max: 1 });
  box.append(bar);
  if (job) {
    const stop = make("button", "ks-button", "Cancel");
    Object.assign(stop, { type: "button", disabled: job.phase === "storing" });
    if (stop.disabled) stop.title = "The rows are being stored.";
    stop.dataset.do = "cancel";
    box.append(stop);
  }
  const before = answer.querySelector(".im-progress");
  // The button keeps the focus while the numbers change.
  if (before && Boolean(before.querySelector("button")) === Boolean(job) && before.querySelector("button")?.disabled === box.querySelector("button")?.disabled) {
    before.querySelector("span").textContent = text;
    before.querySelector("progress").replaceWith(bar);
  } else answer.replaceChildren(box);
}

function upload(file) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("POST", `/research/upload/file?${new URLSearchParams({ name: file.name })}`);
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => progress(`Uploading ${file.name}`, total ? loaded / total : null);
    request.onload = () => resolve(request.status === 200 ? { data: request.response } : { error: request.response?.error ?? LOST });
    request.onerror = () => resolve({ error: LOST });
    request.send(file);
  });
}

// The file or address, as the body of a request; an unchanged file is sent once.
async function place() {
  const address = form.elements.address.value.trim();
  const [file] = form.elements.file.files;
  if (address && file) throw new Error("Choose a file or an address, not both.");
  if (address) return { address };
  if (!file) throw new Error("Choose a file or an address first.");
  const largest = Number(form.dataset.largest);
  if (file.size > largest) throw new Error(`The file is larger than ${largest / 1e6} MB. Split it, or import it in a terminal.`);
  const { data, error } = await upload(file);
  if (error) throw new Error(error);
  return { upload: data.upload };
}

async function follow(started) {
  let job = started;
  state.job = job.id;
  while (!OVER.includes(job.phase)) {
    const { stored, total } = job;
    const storing = job.phase === "storing";
    const text = storing ? `Storing ${count(stored, "record")} of ${total.toLocaleString("en")}` : PHASES[job.phase];
    progress(`${text}…`, storing && total ? stored / total : null, job);
    await new Promise((resolve) => setTimeout(resolve, WAIT));
    const { data, error } = await call(`/${job.id}`);
    if (error) {
      say("bad", "The import can't be followed.", error);
      return null;
    }
    job = data;
  }
  state.job = null;
  answer.replaceChildren();
  return job;
}

async function preview() {
  result.replaceChildren();
  const { kind, source } = chosenWhat();
  const names = namesOfFields();
  const role = form.elements.role.disabled ? null : form.elements.role.value || null;
  const request = { ...(await place()), kind, source, names, role };
  const { data, error } = await call("", { ...request, preview: true });
  if (error) throw new Error(error);
  const job = await follow(data);
  if (!job) return;
  if (job.phase === "cancelled") say("info", "Cancelled. Nothing was stored.");
  else if (job.phase === "failed") failed("The file can't be imported.", job);
  else {
    state.request = { ...request, kind: job.kind, source: job.source };
    show(job);
  }
  offerNames(job);
}

// The names of fields belong to a tool, so a detected tool is chosen if rows may need them.
function offerNames(job) {
  if (!job.source || !job.left_out.bad) return;
  form.elements.what.value = `${job.kind}:${job.source}`;
  showWhat();
}

function failed(title, job) {
  say("bad", title, job.error);
  result.replaceChildren();
  if (job.left_out.count) result.append(leftOut(job));
}

const added = (report) =>
  Object.entries(report.added).filter(([, n]) => n).map(([kind, n]) => count(n, KINDS[kind] ?? kind)).join(", ");
const wordOf = ({ kind, source }) => {
  const option = [...form.elements.what.options].find((each) => each.value === `${kind}:${source ?? ""}`);
  return option ? option.textContent : kind;
};

function show(job) {
  const { report } = job;
  const facts = make("div", "im-facts");
  const fact = (name, text) => {
    const box = make("div");
    box.append(make("span", "", name), make("b", "", text));
    facts.append(box);
  };
  fact(job.detected ? "Detected" : "Contains", wordOf(job));
  fact("Rows", report.rows.toLocaleString("en"));
  fact("To be added", added(report) || "nothing new");
  if (report.known) fact("Stored before", report.known.toLocaleString("en"));
  fact("Left out", job.left_out.count.toLocaleString("en"));
  if (job.detected) facts.title = `By the columns ${job.detected}`;
  result.replaceChildren(make("h3", "", `Preview of ${job.file}`), facts);
  if (report.rows_shown.length) result.append(table(report.rows_shown, report.rows));
  if (job.left_out.count) result.append(leftOut(job));
  if (report.warnings_in_all) {
    const warned = notes(count(report.warnings_in_all, "warning"), report.warnings, report.warnings_in_all);
    warned.open = report.warnings_in_all <= 3;
    result.append(warned);
  }
  result.append(actions(job));
}

function text(name, value) {
  if (name === "outcome") return OUTCOMES[value] ?? value;
  if (Array.isArray(value) && value.every((turn) => turn?.role)) return value.map((turn) => `${turn.role}: ${turn.content}`).join("\n\n");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function table(rows, all) {
  const scroll = make("div", "ks-scroll");
  Object.assign(scroll, { tabIndex: 0, role: "region", ariaLabel: "First rows" });
  const made = make("table", "im-rows");
  made.append(make("caption", "", rows.length < all ? `The first ${count(rows.length, "row")} as understood` : "The rows as understood"));
  const names = [...new Set(rows.flatMap(Object.keys))];
  const head = made.createTHead().insertRow();
  for (const name of names) {
    const cell = make("th", "", titleOf(name));
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const name of names) {
      const cell = line.insertCell();
      const inner = make("div", "im-cell", name in row ? text(name, row[name]) : "");
      inner.dir = "auto";
      cell.dataset.label = titleOf(name);
      if (!(name in row)) cell.className = "im-none";
      cell.append(inner);
    }
  }
  scroll.append(made);
  return scroll;
}

// Each reason once, with its rows.  Reasons name the option of the command; the page has a field for it.
function byReason(rows) {
  const found = new Map();
  for (const { row, reason: said } of rows) {
    const reason = said.replace("with --map ", "under Names of fields: ").replaceAll("--map ", "");
    found.set(reason, [...(found.get(reason) ?? []), row]);
  }
  return found;
}

// "Row 3", "Rows 1 to 15", or "Rows 1, 4, 9 and 12 more".
function rowsInWords(numbers) {
  const first = numbers[0], last = numbers.at(-1);
  if (numbers.length === 1) return `Row ${first}`;
  if (numbers.length > 2 && last - first === numbers.length - 1) return `Rows ${first} to ${last}`;
  return `Rows ${numbers.slice(0, 3).join(", ")}${numbers.length > 3 ? ` and ${numbers.length - 3} more` : ""}`;
}

function notes(title, rows, all) {
  const box = make("details", "im-notes");
  box.append(make("summary", "", title));
  const list = make("ul");
  for (const [reason, numbers] of byReason(rows)) {
    const item = make("li");
    item.append(make("b", "", rowsInWords(numbers)), make("span", "", ` ${reason}`));
    list.append(item);
  }
  box.append(list);
  if (all > rows.length) box.append(make("p", "", `… and ${(all - rows.length).toLocaleString("en")} more.`));
  return box;
}

function leftOut(job) {
  const { count: all, bad, long, "left out": other, rows } = job.left_out;
  const why = [
    bad && count(bad, "bad row"), long && `${count(long, "row")} longer than the model's context`,
    other && `${count(other, "entry", "entries")} that the tool does not count`,
  ].filter(Boolean).join(", ");
  const box = notes(`Left out: ${why}`, rows, all);
  box.open = true;
  const link = make("a", "ks-button", `Download all ${all.toLocaleString("en")} (CSV)`);
  link.href = `/research/download/left-out?${new URLSearchParams({ id: job.id })}`;
  link.download = "left-out.csv";
  box.append(link);
  return box;
}

// What has to be agreed to before the import: one box for each reason to leave rows out.
function actions(job) {
  const { bad, long } = job.left_out;
  const box = make("div", "im-act");
  const ask = (name, label) => {
    const wrap = make("label"), check = make("input");
    Object.assign(check, { type: "checkbox", name, checked: false });
    wrap.append(check, ` ${label}`);
    box.append(wrap);
  };
  if (bad) ask("skip_bad", `Leave out ${count(bad, "bad row")}`);
  if (long) ask("skip_long", `Leave out ${count(long, "long row")}`);
  const go = make("button", "ks-button ks-primary", "Import");
  go.type = "button";
  go.dataset.do = "import";
  const discard = make("button", "ks-button", "Discard");
  discard.type = "button";
  discard.dataset.do = "discard";
  box.append(go, discard);
  const check = () => {
    go.disabled = [...box.querySelectorAll("input")].some((each) => !each.checked);
  };
  box.addEventListener("change", check);
  check();
  return box;
}

async function importIt() {
  const skip = (name) => Boolean(result.querySelector(`[name=${name}]`)?.checked);
  const request = { ...state.request, skip_bad: skip("skip_bad"), skip_long: skip("skip_long") };
  for (const each of result.querySelectorAll(".im-act")) each.remove();
  const { data, error } = await call("", request);
  if (error) throw new Error(error);
  const job = await follow(data);
  if (!job) return;
  if (job.phase === "cancelled") say("info", "Cancelled. Nothing was stored.");
  else if (job.phase === "failed") return failed("The import failed.", job);
  else {
    const words = added(job.report);
    form.reset();
    showFile();
    showWhat();
    const all = job.left_out.count ? "Every other row" : "Everything";
    say("good", words ? `Imported ${words}.` : `${all} in the file was stored before.`);
  }
  result.replaceChildren();
  if (job.phase === "done" && job.left_out.count) result.append(leftOut(job));
}

async function busy(work) {
  const button = form.querySelector("[data-do=preview]");
  if (button.disabled) return;
  button.disabled = true;
  try {
    await work();
  } catch (problem) {
    say("bad", problem.message);
  } finally {
    button.disabled = false;
  }
}

function showFile() {
  const [file] = form.elements.file.files;
  drop.querySelector("b").textContent = file ? file.name : "Drop a file here";
  result.replaceChildren();
  answer.replaceChildren();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  busy(preview);
});
form.elements.file.addEventListener("change", showFile);
form.elements.what.addEventListener("change", showWhat);
form.addEventListener("change", (event) => {
  // Another choice needs another preview.
  if (!event.target.closest(".im-result")) result.replaceChildren();
});
element.addEventListener("click", async (event) => {
  const action = event.target.closest("button")?.dataset.do;
  if (action === "import") busy(importIt);
  if (action === "discard") result.replaceChildren();
  if (action === "cancel" && state.job) {
    const { error } = await call(`/${state.job}/cancel`, {});
    if (error) say("warn", error);
  }
});
for (const name of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("im-over", name === "dragover");
    if (name !== "drop" || !event.dataTransfer.files.length) return;
    form.elements.file.files = event.dataTransfer.files;
    showFile();
  });
}
showWhat();
