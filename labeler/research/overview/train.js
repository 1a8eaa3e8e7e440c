// The drawer that starts training or another attempt at a stopped stage: preset, six settings of the
// method, what differs from the last training, and a search that adds any other setting.
const { make, ask } = window.ksRequests;
const { texts, same, matches, field } = window.ksFields;
const MAIN = { sft: "sft.", sampling: "sampling.", evaluate: "evaluate." }; // the settings of a stage without a method
const FOUND = 8; // suggestions of the search

const drawer = Object.assign(make("dialog", "ks-drawer"), { id: "train-drawer" });
drawer.setAttribute("aria-labelledby", "train-drawer-title");
drawer.innerHTML = `<form method="dialog">
  <header><div><h2 id="train-drawer-title"></h2><p class="ks-detail"></p></div>
    <button type="button" class="ks-close" aria-label="Close">×</button></header>
  <div class="ks-drawer-body">
    <div class="ks-why" hidden></div>
    <div class="ks-caution" aria-live="polite" hidden></div>
    <label class="ks-preset">Preset <select></select></label>
    <div class="ks-main"></div>
    <section class="ks-more" hidden><h3>Other settings</h3><div></div></section>
    <details class="ks-since"><summary></summary><ul></ul></details>
    <div class="ks-adding"><label for="train-search">Add a setting</label>
      <input type="search" id="train-search" role="combobox" aria-expanded="false" aria-controls="train-found" aria-autocomplete="list" autocomplete="off" placeholder="Search by name, label or description">
      <ul id="train-found" role="listbox" aria-label="Settings" hidden></ul></div>
  </div>
  <div class="ks-foot"><div class="ks-answer-slot" aria-live="polite"></div>
    <button type="button" class="ks-button ks-primary" id="train-start"></button>
    <button type="button" class="ks-button ks-cancel">Cancel</button></div></form>`;
document.querySelector("#train-drawer")?.remove(); // Gradio can run this script again
document.querySelector(".gradio-container .contain").append(drawer); // Gradio limits media queries to it
const find = (selector) => drawer.querySelector(selector);
const [title, detail, why, caution, preset, main, more, search, found, since, answer, start] = ["h2", "header p", ".ks-why", ".ks-caution", ".ks-preset select",
  ".ks-main", ".ks-more", "#train-search", "#train-found", ".ks-since", ".ks-answer-slot", "#train-start"].map(find);

let form = null; // of /research/api/loop/form
let fields = new Map(); // name → field, of the settings in the drawer
let added = []; // settings that the person added
let method = "";

const setting = (name) => form.settings.find((each) => each.name === name);
const open = (each) => each.offered && !each.why_fixed;
const value = (name) => fields.get(name)?.value ?? setting(name).value;
const changes = () => Object.fromEntries([...fields].filter(([name, made]) => !same(made.value, setting(name).value)).map(([name, made]) => [name, made.value]));

const named = (text) => (text === "" || text === null ? "empty" : text);

// The settings that the drawer shows first: those of the method, or of the stage that stopped.
function first() {
  const basic = form.settings.filter((each) => open(each) && method in each.basic).sort((a, b) => a.basic[method] - b.basic[method]);
  const prefix = MAIN[form.stopped?.stage];
  return prefix ? form.settings.filter((each) => open(each) && each.name.startsWith(prefix)) : basic;
}

function ensure(name, text) {
  if (!fields.has(name)) {
    const made = field(setting(name), { prefix: "setting", value: setting(name).value, changed });
    const suggested = form.stopped?.suggestion[name];
    if (suggested !== undefined) {
      made.element.classList.add("ks-suggested");
      made.help.prepend(`Suggested value (previously ${setting(name).value}). `);
    }
    fields.set(name, made);
  }
  if (text !== undefined) fields.get(name).value = text;
  return fields.get(name);
}

function layOut() {
  const names = first().map((each) => each.name);
  // What differs from the workspace is always in sight; the rest was added by hand.
  const others = [...new Set([...fields.keys()].filter((name) => !names.includes(name) && (added.includes(name) || name in changes())))];
  for (const name of fields.keys()) if (!names.includes(name) && !others.includes(name)) fields.delete(name);
  place(main, names);
  place(more.lastElementChild, others);
  more.hidden = !others.length;
  const warns = form.caution?.methods.includes(method);
  caution.hidden = !warns;
  caution.replaceChildren(...(warns ? [note("warn", form.caution.title, form.caution.body)] : []));
  compare();
}

function place(box, names) {
  const wanted = names.map((name) => ensure(name).element);
  if (wanted.length !== box.children.length || wanted.some((each, i) => box.children[i] !== each)) box.replaceChildren(...wanted);
}

function changed(made) {
  answer.replaceChildren();
  if (made.setting.name === "optimize.method") {
    method = made.value;
    layOut();
    made.control.focus();
  } else compare();
}

// What differs from the settings of the last training, among those that this start reads.
function compare() {
  since.hidden = !form.last;
  if (!form.last) return;
  const other = form.settings.filter((each) => open(each) && each.last !== null && !same(value(each.name), each.last));
  const summary = since.firstElementChild;
  summary.replaceChildren(make("b", "", other.length ? `${other.length} changed` : "No change"), ` from the last run (${form.last})`);
  since.classList.toggle("ks-none", !other.length);
  if (!other.length) since.open = false;
  since.lastElementChild.replaceChildren(...other.map((each) => {
    const line = make("li");
    line.append(make("span", "", each.label), make("code", "", `${named(each.last)} → ${named(value(each.name))}`));
    return line;
  }));
}

function fill(choice) {
  const wanted = { workspace: (each) => each.value, last: (each) => each.last ?? each.value, preset: (each) => each.preset ?? each.default }[choice];
  for (const each of form.settings.filter(open)) {
    if (!same(wanted(each), value(each.name))) ensure(each.name, wanted(each)).fail("");
  }
  method = value("optimize.method");
  layOut();
}

// Search
let options = []; // of the list
let active = -1;

function suggest() {
  const words = search.value.trim();
  const shown = words ? form.settings.filter((each) => each.offered && matches(each, words) && !main.contains(fields.get(each.name)?.element)) : [];
  const rank = (each) => (each.label.toLowerCase().includes(words.toLowerCase()) || each.name.includes(words.toLowerCase()) ? 0 : 1);
  options = shown.sort((a, b) => rank(a) - rank(b)).slice(0, FOUND);
  active = options.findIndex(open);
  found.replaceChildren(...options.map(option));
  if (words && !options.length) found.append(make("li", "ks-detail", "No setting matches."));
  found.hidden = !words;
  if (words) found.scrollIntoView({ block: "nearest" });
  search.setAttribute("aria-expanded", String(!found.hidden));
  point();
}

function option(each, i) {
  const line = Object.assign(make("li"), { id: `train-found-${i}` });
  line.setAttribute("role", "option");
  const name = make("span", "ks-option-name"), facts = make("span", "ks-option-facts", open(each) ? each.value : each.applies_text);
  name.append(make("b", "", each.label), make("code", "", each.name));
  line.append(name, facts);
  if (!open(each)) line.setAttribute("aria-disabled", "true");
  line.onmousedown = (event) => {
    event.preventDefault();
    if (open(each)) add(each);
  };
  return line;
}

function point() {
  [...found.querySelectorAll("[role=option]")].forEach((line, i) => line.setAttribute("aria-selected", String(i === active)));
  if (active >= 0) search.setAttribute("aria-activedescendant", `train-found-${active}`);
  else search.removeAttribute("aria-activedescendant");
  found.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
}

function add(each) {
  search.value = "";
  suggest();
  added.push(each.name);
  ensure(each.name);
  layOut();
  fields.get(each.name).control.focus();
}

search.oninput = suggest;
search.onfocus = suggest;
search.onblur = () => (found.hidden = true);
search.onkeydown = (event) => {
  if (found.hidden || !options.length) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const step = event.key === "ArrowDown" ? 1 : options.length - 1;
    for (let i = 0, next = active; i < options.length; i++) {
      next = (next + step + options.length) % options.length;
      if (open(options[next])) {
        active = next;
        break;
      }
    }
    point();
  } else if (event.key === "Enter" && active >= 0) add(options[active]);
  else if (event.key === "Escape") {
    search.value = "";
    suggest();
  } else return;
  event.preventDefault();
};

// Opening and starting
async function show() {
  try {
    form = await ask("loop/form");
    form.settings = texts(form.settings);
  } catch (error) {
    element.querySelector(".ks-started").replaceChildren(note("bad", "The form cannot be opened.", error.message));
    return;
  }
  const stopped = form.stopped;
  fields = new Map();
  added = [];
  method = setting("optimize.method")?.value ?? "ppo";
  title.textContent = stopped ? `Retry with changes: ${form.stage}` : form.iteration ? `Train iteration ${form.iteration}` : "Train";
  detail.textContent = stopped ? "Starts the stage again with these settings." : "Trains a reward model on all judgments so far, then the policy, and evaluates it.";
  start.textContent = stopped ? "Retry" : "Start training";
  start.disabled = !stopped && Boolean(form.reason);
  why.hidden = !stopped;
  if (stopped) why.replaceChildren(note(stopped.status === "failed" ? "bad" : "warn", stopped.reason || `The stage was ${stopped.status}.`, stopped.remedy && `${form.flag}: ${stopped.remedy}`));
  answer.replaceChildren(...(start.disabled ? [note("info", "Can't start training.", form.reason)] : []));
  const choices = [["workspace", "Workspace settings"], ...(form.last ? [["last", `Last run (${form.last})`]] : []), ["preset", "Defaults for this model"]];
  preset.replaceChildren(...choices.map(([choice, name]) => Object.assign(make("option", "", name), { value: choice })));
  preset.parentElement.hidden = Boolean(stopped);
  main.replaceChildren();
  for (const [name, suggested] of Object.entries(stopped?.suggestion ?? {})) ensure(name, suggested);
  for (const each of stopped ? form.settings.filter(open) : []) {
    if (!mentions(stopped.reason, each.name)) continue;
    ensure(each.name).fail(stopped.reason);
    added.push(each.name);
  }
  layOut();
  search.value = "";
  suggest();
  found.hidden = true;
  since.open = false;
  if (!drawer.open) drawer.showModal();
  find(".ks-drawer-body").scrollTop = 0;
  (fields.get(Object.keys(stopped?.suggestion ?? {})[0])?.control ?? start).focus({ preventScroll: true });
}

const mentions = (sentence, name) => new RegExp(`(?<![\\w.])${name.replaceAll(".", "\\.")}(?!\\.?\\w)`).test(sentence);

function note(tone, head, body) {
  const made = make("div", `ks-note ks-${tone}`);
  made.append(make("b", "", head));
  if (body) made.append(make("div", "", body));
  return made;
}

async function begin() {
  const sent = changes(), stopped = form.stopped;
  start.disabled = true;
  for (const made of fields.values()) made.fail("");
  try {
    await (stopped ? ask("loop/retry", { run: stopped.run, attempt: stopped.attempt, overrides: sent }) : ask("loop/train", { overrides: sent }));
  } catch (error) {
    refused(error);
    return;
  } finally {
    start.disabled = false;
  }
  drawer.close();
  trigger("act", {}); // what the page said before is not true any more
  const done = Object.keys(sent).map((name) => `${setting(name).label} ${named(sent[name])}`).join(", ");
  element.querySelector(".ks-started").replaceChildren(
    note("good", stopped ? "The stage has started again." : "Training has started.", `The Runs page shows its progress.${done && ` Changed: ${done}.`}`));
}

function refused(error) {
  const wrong = Object.keys(error.fields ?? {}).filter((name) => fields.has(name));
  for (const name of wrong) fields.get(name).fail(error.fields[name]);
  const head = form.stopped ? "Can't retry." : "Can't start training.";
  const counted = `${wrong.length} ${wrong.length === 1 ? "value is" : "values are"} wrong: ${wrong.map((name) => setting(name).label).join(", ")}.`;
  answer.replaceChildren(note("bad", head, wrong.length ? counted : error.message));
  if (wrong.length) fields.get(wrong[0]).control.focus();
}

preset.onchange = () => fill(preset.value);
start.onclick = begin;
find(".ks-close").onclick = find(".ks-cancel").onclick = () => drawer.close();
drawer.onclick = (event) => {
  if (event.target === drawer) drawer.close(); // the backdrop; a handler that returns false would cancel the click
};
find("form").onsubmit = (event) => event.preventDefault();
find("form").onkeydown = (event) => {
  if (event.key === "Enter" && event.target.matches(".ks-setting input[type=text]")) begin();
};
window.ksOpenTrain?.abort();
window.ksOpenTrain = new AbortController();
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#train, #retry, #go-retry")) show();
}, { signal: window.ksOpenTrain.signal });
