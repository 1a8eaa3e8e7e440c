// The settings page: every setting of config.toml in groups, with search, validation and saving.
const { make, ask } = window.ksRequests;
const { texts, same, matches, field } = window.ksFields;
const WHEN = { now: "good", stage: "neutral", iteration: "neutral", restart: "warn", workspace: "warn" };

element.innerHTML = `<div class="ks-settings">
  <div class="ks-settings-bar">
    <input type="search" placeholder="Search by name, label or description" aria-label="Search settings">
    <label class="ks-check"><input type="checkbox" class="ks-only"> Changed only <span class="ks-count"></span></label>
    <span class="ks-grow ks-detail" role="status"></span>
    <span class="ks-saving" hidden><b class="ks-dirty"></b>
      <button type="button" class="ks-button ks-discard">Discard</button>
      <button type="button" class="ks-button ks-primary ks-save">Save to config.toml</button></span>
    <div class="ks-answer-slot" aria-live="polite"></div></div>
  <div class="ks-groups"></div></div>`;
const find = (selector) => element.querySelector(selector);
const [search, only, said, saving, dirty, discard, save, answer, groups, count] = ["[type=search]", ".ks-only", "[role=status]", ".ks-saving",
  ".ks-dirty", ".ks-discard", ".ks-save", ".ks-answer-slot", ".ks-groups", ".ks-count"].map(find);

let page = null; // of /research/api/config
let rows = []; // {setting, made, element, back, mark}

const standard = (setting) => setting.preset ?? setting.default;
const differs = (row) => !same(row.made.value, standard(row.setting));
const edited = (row) => !same(row.made.value, row.setting.value);
const changes = () => Object.fromEntries(rows.filter(edited).map((row) => [row.setting.name, row.made.value]));

function tell(tone, title, body, ...buttons) {
  const note = make("div", `ks-note ks-${tone}`);
  note.append(make("b", "", title), make("div", "", body ?? ""), ...buttons);
  answer.replaceChildren(note);
}

function build(kept) {
  rows = page.settings.map(row);
  for (const each of rows) if (each.setting.name in kept) each.made.value = kept[each.setting.name];
  const names = [...new Set(page.settings.map((setting) => setting.group))];
  const open = new Set([...groups.querySelectorAll("details[open]")].map((each) => each.dataset.group));
  groups.replaceChildren(...names.map((name) => group(name, open.has(name))));
  rows.forEach(update);
  filter();
}

function group(name, open) {
  const made = Object.assign(make("details", "ks-card ks-group"), { open });
  made.dataset.group = name;
  const summary = make("summary");
  summary.append(make("h2", "", name), make("span", "ks-detail"));
  made.append(summary, ...rows.filter((each) => each.setting.group === name).map((each) => each.element));
  return made;
}

function row(setting) {
  const fixed = !page.may_save || Boolean(setting.why_fixed);
  const made = field(setting, { prefix: "config", value: setting.value, disabled: fixed, changed: () => { update(found); summarize(); } });
  const back = Object.assign(make("button", "ks-reset", "Reset"), { type: "button", hidden: true });
  const from = setting.preset !== null && !same(setting.preset, setting.default) ? `${page.preset} preset` : "default";
  const facts = make("div", "ks-facts");
  const usual = make("span", "ks-default"), shown = standard(setting);
  usual.append(from === "default" ? "Default " : "Preset ", make("code", "", shown === "" ? "empty" : shown));
  usual.title = from === "default" ? "" : `General default: ${setting.default}`;
  facts.append(usual, back, make("span", `ks-when ks-${WHEN[setting.applies]}`, setting.applies_text));
  made.element.append(facts);
  for (const text of [setting.why_fixed && `Cannot be changed: ${setting.why_fixed}.`, setting.note])
    if (text) made.element.append(make("p", "ks-in-use", text));
  const found = { setting, made, element: made.element, back };
  back.setAttribute("aria-label", `Reset ${setting.label}`);
  back.onclick = () => {
    made.value = standard(setting);
    made.fail("");
    made.control.focus();
    update(found);
    summarize();
  };
  return found;
}

function update(row) {
  row.element.classList.toggle("ks-differs", differs(row));
  row.element.classList.toggle("ks-edited", edited(row));
  row.back.hidden = row.made.control.disabled || !differs(row);
}

function filter() {
  const words = search.value.trim();
  let shown = 0;
  for (const each of rows) {
    // What is being edited stays in sight.
    const hit = matches(each.setting, words) && (!only.checked || differs(each) || edited(each));
    each.element.hidden = !hit;
    shown += hit;
  }
  for (const box of groups.children) {
    const inside = [...box.querySelectorAll(".ks-setting:not([hidden])")];
    box.hidden = !inside.length;
    if (words || only.checked) {
      box.dataset.opened ??= String(box.open);
      box.open = true;
    } else if (box.dataset.opened) {
      box.open = box.dataset.opened === "true";
      delete box.dataset.opened;
    }
  }
  said.textContent = shown ? (words || only.checked ? `${shown} of ${rows.length} settings` : "") : "No setting matches.";
  summarize();
}

function summarize() {
  const changed = rows.filter(edited).length;
  saving.hidden = !changed;
  dirty.textContent = `${changed} unsaved`;
  count.textContent = rows.filter(differs).length;
  for (const box of groups.children) {
    const own = rows.filter((each) => each.setting.group === box.dataset.group);
    const other = own.filter(differs).length;
    box.querySelector("summary span").textContent = `${own.length} ${own.length === 1 ? "setting" : "settings"}${other ? ` · ${other} changed` : ""}`;
  }
}

function take(found) {
  page = { ...found, settings: texts(found.settings) };
}

async function load(kept = {}) {
  try {
    take(await ask("config"));
  } catch (error) {
    tell("bad", "Settings cannot be loaded.", error.message);
    return;
  }
  build(kept);
}

function show(name) {
  const row = rows.find((each) => each.setting.name === name);
  row.element.hidden = false;
  row.element.closest("details").hidden = false;
  row.element.closest("details").open = true;
  return row;
}

async function store() {
  save.disabled = true;
  const sent = changes();
  try {
    take(await ask("config", { version: page.version, changes: sent }));
    build({});
    const names = Object.keys(sent);
    const when = [...new Set(names.map((name) => page.settings.find((each) => each.name === name).applies_text))];
    tell("good", `Saved ${names.length} ${names.length === 1 ? "setting" : "settings"} to config.toml.`, `${when.join(". ")}.`);
  } catch (error) {
    refused(error);
  } finally {
    save.disabled = false;
  }
}

function refused(error) {
  const wrong = Object.entries(error.fields ?? {}).filter(([name]) => rows.some((each) => each.setting.name === name));
  for (const row of rows) row.made.fail(error.fields?.[row.setting.name] ?? "");
  if (error.status === 409) {
    const again = Object.assign(make("button", "ks-button", "Reload and keep my changes"), { type: "button" });
    again.onclick = () => {
      answer.replaceChildren();
      load(changes());
    };
    tell("warn", "Not saved: config.toml changed on disk.", "Somebody edited the file after this page read it.", again);
  } else if (wrong.length) {
    const links = wrong.map(([name]) => {
      const row = show(name), link = Object.assign(make("button", "ks-reset", row.setting.label), { type: "button" });
      link.onclick = () => show(name).made.control.focus();
      return link;
    });
    tell("bad", `Not saved: ${wrong.length} ${wrong.length === 1 ? "value is" : "values are"} wrong.`, "", ...links);
    show(wrong[0][0]).made.control.focus();
  } else tell("bad", "Not saved.", error.message);
}

search.oninput = filter;
only.onchange = filter;
save.onclick = store;
discard.onclick = () => {
  answer.replaceChildren();
  for (const row of rows) {
    row.made.value = row.setting.value;
    row.made.fail("");
    update(row);
  }
  filter();
};
groups.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input[type=text]") && !saving.hidden) store();
});
addEventListener("beforeunload", (event) => {
  if (!saving.hidden) event.preventDefault();
});
// Opening the section shows what others saved meanwhile, unless something is being edited.
new IntersectionObserver((seen) => {
  if (seen.at(-1).isIntersecting && page && saving.hidden) load();
}).observe(element);
load();
