// Studies: a list with progress and results, and the drawer that starts one (docs/http.md has the routes).
// Names, settings and reasons are untrusted: they are only ever set as text.
const { make, ask, attempt } = window.ksRequests;
const { texts, field } = window.ksFields;
const { number } = window.ksPlotting;
const KINDS = { sweep: "KL-weight sweep", compare: "Method comparison", retrain: "Reward model without some judgments" };
const BASES = { sweep: "kl-weight", compare: "methods", retrain: "retrain" }; // of new names
const METHODS = { sft: "SFT", best_of_n: "Best-of-N", ppo: "PPO", grpo: "GRPO", "reinforce++": "REINFORCE++", dpo: "DPO", rloo: "RLOO" };
const EXTRA = new Set(["grpo", "reinforce++"]); // not in a comparison by default, as in `launch.py compare`
const TONES = { running: "info", succeeded: "good", failed: "bad", cancelled: "warn" };
const FIELDS = { sweep: ["kl_weight", "kl_budget"], compare: ["kl", "snapshots"], retrain: ["controls"] }; // that can be wrong
const MOST = 10; // runs that can be compared
const NORMAL = 1.96; // standard errors of a 95% interval
const READS = /^(ppo|optimize|shaping|worker)\./; // settings that the policy stage reads

element.innerHTML = `<div class="st-studies"><div class="st-head"><div><h2>Studies</h2><p class="ks-detail st-offer" role="status"></p></div>
  <button type="button" class="ks-button ks-primary ks-acts st-new" disabled>New study</button></div>
  <div class="st-said" role="status"></div><div class="st-list"></div></div>`;
const $ = (selector) => element.querySelector(selector);
const [offerLine, opener, said, list] = [".st-offer", ".st-new", ".st-said", ".st-list"].map($);

const drawer = Object.assign(make("dialog", "ks-drawer"), { id: "study-drawer" });
drawer.setAttribute("aria-labelledby", "study-drawer-title");
drawer.innerHTML = `<form method="dialog" novalidate>
  <header><div><h2 id="study-drawer-title">New study</h2><p class="ks-detail st-repeats"></p></div>
    <button type="button" class="ks-close" aria-label="Close">×</button></header>
  <div class="ks-drawer-body">
    <fieldset class="st-kinds"><legend>Kind</legend>
      <label><input type="radio" name="kind" value="sweep" checked><span><b>KL-weight sweep</b><small>PPO at several values of β; reward against KL</small></span></label>
      <label><input type="radio" name="kind" value="compare"><span><b>Method comparison</b><small>Several methods, compared at one KL from SFT</small></span></label>
      <label><input type="radio" name="kind" value="retrain"><span><b>Reward model without some judgments</b><small>Trained again; what they change in accuracy, policies and verdicts</small></span></label></fieldset>
    <label class="st-field">Name<input type="text" name="name" maxlength="100" autocomplete="off" spellcheck="false">
      <small>Letters, digits and spaces. The name of an earlier study with the same values continues it.</small></label>
    <div class="st-part" data-kind="sweep"><label class="st-field">Values of β<input type="text" name="kl_weight" autocomplete="off" spellcheck="false" inputmode="text">
        <small>KL weights, separated by commas. One PPO run for each.</small></label>
      <label class="st-field">KL budget<input type="text" name="kl_budget" inputmode="decimal" autocomplete="off" value="5"><small>The KL that you would accept, nats per response.</small></label></div>
    <div class="st-part" data-kind="compare" hidden><fieldset class="st-methods"><legend>Methods</legend></fieldset>
      <label class="st-field">Compared at a KL of<input type="text" name="kl" inputmode="decimal" autocomplete="off" value="2"><small>Nats per response.</small></label>
      <label class="st-field">Snapshots<input type="text" name="snapshots" inputmode="numeric" autocomplete="off" value="5"><small>Policies kept during training, as points of a curve.</small></label></div>
    ${retrained.MARKUP}
    <section class="st-changed"><label class="st-field">Change a setting <span>optional</span><select></select></label><div></div></section>
  </div>
  <div class="ks-foot"><div class="ks-answer-slot" aria-live="polite"></div>
    <button type="submit" class="ks-button ks-primary">Start study</button>
    <button type="button" class="ks-button ks-cancel">Cancel</button></div></form>`;
const form = drawer.querySelector("form"), answer = drawer.querySelector(".ks-answer-slot"), start = drawer.querySelector("[type=submit]");
const [picker, changedBox] = [drawer.querySelector(".st-changed select"), drawer.querySelector(".st-changed > div")];

let state = { offer: null, studies: [] };
let settings = null; // of the current iteration, as fields take them
let fields = new Map(); // name → field, of the changed settings
const details = new Map(); // study → the answer with its report, once it is finished
const open = new Set(); // studies whose results are shown
let shown = ""; // what the list was made from

function note(tone, head, body) {
  const made = make("div", `ks-note ks-${tone}`);
  made.append(make("b", "", head));
  if (body) made.append(make("div", "", body));
  return made;
}

const span = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);

function ago(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 60 ? "just now" : seconds < 86400 ? `${span(seconds)} ago` : new Date(time).toLocaleDateString();
}

const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");
const repeated = (offer) => `${offer.run} (${offer.method}, iteration ${offer.iteration})`;

function showOffer() {
  const { offer } = state;
  opener.disabled = !Object.keys(KINDS).some((each) => !refusal(each));
  const retrains = offer.reason && !refusal("retrain") ? `A new study can train ${offer.retrain.model} again without some judgments. For other kinds: ` : "";
  offerLine.textContent = offer.reason ? retrains + offer.reason : `A new study repeats ${repeated(offer)} outside the loop.`;
}

// Why no study of a kind can start; null if one can.
function refusal(kind) {
  const { offer } = state;
  if (kind !== "retrain") return offer.reason;
  return offer.retrain ? offer.retrain.reason : "There is no reward model yet.";
}

// The list

function table(head, rows) {
  const box = make("div", "ks-scroll"), made = make("table", "ks-table"), top = make("tr"), body = make("tbody");
  for (const [name, css] of head) top.append(Object.assign(make("th", css, name), { scope: "col" }));
  for (const cells of rows) {
    const line = make("tr", cells.best ? "st-best" : "");
    cells.forEach((content, i) => {
      const cell = make("td", head[i][1]);
      cell.dataset.label = head[i][0];
      cell.append(content ?? "–");
      line.append(cell);
    });
    body.append(line);
  }
  made.append(make("thead"), body);
  made.querySelector("thead").append(top);
  box.append(made);
  return box;
}

function runLine(run) {
  const line = make("li", `st-run st-${run.status}`);
  line.append(make("b", "", run.title), make("span", `ks-badge ks-${TONES[run.status]}`, run.status));
  const figures = run.reward === null ? "" : `reward ${number(run.reward, 3)}, KL ${number(run.kl, 3)}`;
  line.append(make("span", "ks-detail", run.reason && run.status === "failed" ? run.reason : figures));
  return line;
}

function described(study) {
  const { plan } = study;
  if (study.kind === "retrain") return retrained.described(plan);
  const values = study.kind === "sweep"
    ? `β ${plan.kl_weight.join(", ")}; KL budget ${plan.kl_budget} nats`
    : `${plan.methods.map((each) => METHODS[each]).join(", ")} at ${plan.kl} nats`;
  return [values, ...Object.entries(study.settings).map(([name, value]) => `${name}=${value}`)].join("; ");
}

function verdict(report) {
  const { best, lead, kl_budget: budget, runs } = report;
  if (runs.every((run) => run.unmoved)) return ["warn", "No recommendation", "With every β the policy stayed at the reference. Train longer, raise ppo.lr or lower β."];
  if (best === null) return ["warn", "No recommendation", `No policy that moved stayed within ${budget} nats.`];
  if (!lead) return ["info", `β = ${best}`, `No other β has a reward within ${budget} nats to compare with.`];
  const error = NORMAL * lead.error, sure = lead.by > error;
  return [sure ? "good" : "info", `Recommended within ${budget} nats: β = ${best}`,
    `Its reward is ${lead.by.toFixed(3)} ± ${error.toFixed(3)} above that of β = ${lead.over}${sure ? "." : ": within noise."}`];
}

function sweepTable(report) {
  const head = [["β", "ks-left"], ["Reward", "ks-right"], ["KL", "ks-right"], ["Gain, sd", "ks-right"], [`Reward within ${report.kl_budget} nats`, "ks-right"]];
  const made = table(head, report.runs.map((run) => {
    const name = make("span", "", String(run.kl_weight));
    if (run.kl_weight === report.best) name.append(" ", make("span", "ks-badge ks-good", "best"));
    if (run.unmoved) name.append(" ", make("span", "ks-badge", "did not move"));
    const within = run.reward_within_budget;
    return Object.assign([name, fixed(run.reward, 3), fixed(run.kl, 2), fixed(run.gain, 2), within === null ? "above budget" : fixed(within, 3)], { best: run.kl_weight === report.best });
  }));
  // Otherwise they seem to contradict the table of runs, where one update has another KL and reward.
  made.append(make("p", "ks-detail", "Reward and KL: means over several updates, as in the figure; the table of runs shows the last update. Gain: rise of the reward in standard deviations of the reward of SFT."));
  return made;
}

function comparisonTable(report) {
  const right = "ks-right", head = [["Method", "ks-left"], ["Gold", right], ["Reward", right], ["KL", right], ["Tokens", right], ["Wins against SFT", right], [`Gold at ${report.kl} nats`, right], ["Training", right]];
  return table(head, report.methods.map((row) => {
    const sft = row.method === "sft", { win_rate: rate, low, high } = row.win_rate;
    return [METHODS[row.method], fixed(row.gold, 3), fixed(row.reward, 3), fixed(row.kl, 2), fixed(row.length, 1),
      sft ? null : `${Math.round(100 * rate)}% (${Math.round(100 * low)}–${Math.round(100 * high)}%)`,
      sft ? null : row.gold_at_kl === null ? "not reached" : fixed(row.gold_at_kl, 3), row.training_seconds ? span(row.training_seconds) : null];
  }));
}

// The stored figure; on a narrow screen it scrolls, so that its text stays readable.
function plotOf(study, alt) {
  const box = make("div", "st-figure");
  box.append(Object.assign(make("img", "st-plot"), { src: `/research/api/studies/${encodeURIComponent(study.id)}/plot`, alt }));
  return box;
}

function result(study) {
  const box = make("div", "st-result"), found = details.get(study.id);
  if (!found) return box;
  const { report } = found;
  if (!report) {
    box.append(note("info", "No report", "The files of this study are not in this workspace."));
    return box;
  }
  if (study.kind === "retrain") {
    box.append(retrained.result(report, table, plotOf(study, `Shifts of accuracy and win rates with their intervals, and what chance gives, for ${study.name}`)));
    return box;
  }
  if (study.kind === "sweep") box.append(note(...verdict(report)));
  box.append(study.kind === "sweep" ? sweepTable(report) : comparisonTable(report));
  box.append(plotOf(study, study.kind === "sweep" ? `Reward against KL for each β of ${study.name}` : `Score against KL for each method of ${study.name}`));
  return box;
}

function button(text, css, act) {
  const made = Object.assign(make("button", `ks-button ks-acts ${css}`, text), { type: "button" });
  made.dataset.act = act;
  return made;
}

function card(study) {
  const box = make("article", "ks-card st-study"), head = make("header"), title = make("div"), acts = make("div", "st-acts");
  box.dataset.study = study.id;
  const name = make("h3", "", study.name);
  name.dir = "auto";
  name.append(make("span", `ks-badge ks-${TONES[study.status]}`, study.stopping ? "stopping" : study.status));
  title.append(name, make("p", "ks-detail", [KINDS[study.kind], `repeats ${study.repeats} of iteration ${study.iteration}`, ...(study.by ? [study.by] : []), ago(study.started ?? study.created)].join(" · ")),
    make("p", "ks-detail st-plan", described(study)));
  if (study.status === "running") acts.append(Object.assign(button("Cancel", "ks-bad", "cancel"), { disabled: study.stopping }));
  if (study.status === "failed" || study.status === "cancelled") acts.append(Object.assign(button("Continue", "", "continue"), { disabled: Boolean(refusal(study.kind)) }));
  const drawn = study.runs.filter((run) => run.reward !== null).slice(0, MOST);
  if (drawn.length) {
    const link = make("a", "ks-button", "Compare curves");
    link.href = `/research/?tab=runs&section=compare&runs=${encodeURIComponent(drawn.map((run) => run.id).join(","))}`;
    acts.append(link);
  }
  head.append(title, acts);
  box.append(head);
  if (study.status === "running") {
    const bar = Object.assign(make("progress"), { value: study.progress, max: 1, ariaLabel: `Progress of ${study.name}` });
    const line = make("div", "st-progress");
    line.append(make("span", "", study.stopping ? "Ends the current step and keeps a checkpoint…" : study.message), make("span", "st-share", `${Math.round(100 * study.progress)}%`), bar);
    box.append(line);
  }
  if (study.status === "failed") box.append(note("bad", "The study failed.", study.reason));
  if (study.status === "cancelled") box.append(make("p", "ks-detail", `Cancelled with ${study.runs.filter((run) => run.status === "succeeded").length} of ${study.planned} runs finished. Continue keeps what is done.`));
  if (study.status !== "succeeded") {
    const runs = make("ul", "st-runs");
    runs.append(...study.runs.map(runLine));
    if (study.runs.length) box.append(runs);
  } else {
    const more = make("details", "st-more");
    more.open = open.has(study.id);
    more.append(make("summary", "", "Result"), result(study));
    more.addEventListener("toggle", () => toggled(study.id, more));
    box.append(more);
  }
  return box;
}

async function toggled(id, more) {
  if (more.open) open.add(id);
  else open.delete(id);
  if (more.open && !details.has(id)) await read(id);
}

async function read(id) {
  const { data, error } = await attempt(`studies/${encodeURIComponent(id)}`);
  if (error) return say("bad", error);
  details.set(id, data);
  draw(true);
}

function say(tone, head, body) {
  said.replaceChildren(...(head ? [note(tone, head, body)] : []));
}

function draw(again = false) {
  const now = JSON.stringify(state);
  if (now === shown && !again) return;
  shown = now;
  const focused = document.activeElement?.closest?.(".st-study") && { study: document.activeElement.closest(".st-study").dataset.study, act: document.activeElement.dataset.act, summary: document.activeElement.matches("summary") };
  showOffer();
  if (!state.studies.length) {
    const empty = make("div", "ks-empty");
    empty.append(make("b", "", "No studies yet"), make("p", "", "A study repeats the newest policy run with other KL weights or other methods, or trains the reward model again without some judgments, and compares the results. Its runs never count as the loop's."));
    list.replaceChildren(empty);
  } else list.replaceChildren(...state.studies.map(card));
  if (!focused) return;
  const place = [...list.children].find((each) => each.dataset.study === focused.study);
  (focused.summary ? place?.querySelector("summary") : place?.querySelector(`[data-act=${focused.act ?? "none"}]`))?.focus({ preventScroll: true });
}

async function refresh() {
  if (!element.getClientRects().length || document.hidden) return;
  const { data, error } = await attempt("studies");
  if (error) return say("bad", error);
  const first = !state.offer;
  for (const { id, status, started } of data.studies) {
    const known = state.studies.find((each) => each.id === id);
    if (status !== "succeeded" || (known && known.started !== started)) details.delete(id);
  }
  // The study of the address, or the newest finished one, shows its result.
  const asked = new URLSearchParams(location.search).get("study");
  const newest = data.studies.find((each) => each.status === "succeeded");
  const ended = data.studies.filter((each) => each.status === "succeeded" && state.studies.some((old) => old.id === each.id && old.status === "running"));
  if (first && (asked ?? newest)) open.add(asked ?? newest.id);
  for (const { id } of ended) open.add(id);
  state = data;
  draw();
  for (const id of open) if (!details.has(id) && data.studies.some((each) => each.id === id && each.status === "succeeded")) await read(id);
  if (first && asked) list.querySelector(`[data-study="${CSS.escape(asked)}"]`)?.scrollIntoView({ block: "start" });
}

list.addEventListener("click", async (event) => {
  const pressed = event.target.closest("button[data-act]");
  if (!pressed) return;
  pressed.disabled = true;
  const { error } = await attempt(`studies/${encodeURIComponent(pressed.closest(".st-study").dataset.study)}/${pressed.dataset.act}`, {});
  say("bad", error ?? "");
  shown = "";
  refresh();
});

// The drawer

const kind = () => form.elements.kind.value;

function showKind() {
  const { offer } = state;
  for (const part of drawer.querySelectorAll(".st-part")) part.hidden = part.dataset.kind !== kind();
  drawer.querySelector(".st-changed").hidden = kind() === "retrain"; // with the settings that it had
  drawer.querySelector(".st-repeats").textContent = kind() === "retrain"
    ? `Trains ${offer.retrain.model} of iteration ${offer.retrain.iteration} again, outside the loop. No stage can start until it ends.`
    : `Repeats ${repeated(offer)} with its prompts, models and settings, outside the loop. No stage can start until it ends.`;
  answer.replaceChildren();
}

function wrong(name, sentence) {
  const control = form.elements[name], place = control.closest(".st-field");
  place.classList.toggle("ks-wrong", Boolean(sentence));
  place.querySelector(".ks-problem")?.remove();
  control.removeAttribute("aria-invalid");
  if (!sentence) return;
  place.append(make("p", "ks-problem", sentence));
  control.setAttribute("aria-invalid", "true");
}

// The body of the request, or null after naming each wrong field.
function body() {
  const problems = {}, value = (name) => form.elements[name].value.trim();
  const positive = (name) => {
    const found = Number(value(name));
    if (!value(name) || !(found > 0)) problems[name] = "Enter a number above 0.";
    return found;
  };
  const made = { kind: kind(), name: value("name") };
  if (made.kind === "retrain") Object.assign(made, retrained.values(form));
  else made.settings = Object.fromEntries([...fields].map(([name, each]) => [name, each.value]));
  if (!/^[\p{L}\p{N}_][\p{L}\p{N}_ .=+-]*$/u.test(made.name)) problems.name = "Start with a letter or digit; use letters, digits, spaces and - _ . = +";
  if (made.kind === "sweep") {
    const parts = value("kl_weight").split(",").map((part) => part.trim());
    made.kl_weight = parts.map(Number);
    if (parts.some((part) => !part) || made.kl_weight.some((each) => !(each >= 0))) problems.kl_weight = "Enter numbers from 0 on, such as 0, 0.02, 0.05, 0.2.";
    made.kl_budget = positive("kl_budget");
  } else if (made.kind === "retrain") {
    if (!value("controls") || !Number.isInteger(made.controls) || made.controls < 0 || made.controls > 20) problems.controls = "Enter a whole number from 0 to 20.";
  } else {
    made.methods = [...drawer.querySelectorAll(".st-methods input:checked")].map((each) => each.value);
    made.kl = positive("kl");
    made.snapshots = Number(value("snapshots"));
    if (!value("snapshots") || !Number.isInteger(made.snapshots) || made.snapshots < 0) problems.snapshots = "Enter a whole number.";
  }
  for (const name of ["name", ...FIELDS[made.kind]]) wrong(name, problems[name]);
  const [first] = Object.keys(problems);
  if (first) form.elements[first].focus();
  return first ? null : made;
}

async function begin() {
  const sent = body();
  if (!sent) return;
  start.disabled = true;
  answer.replaceChildren();
  for (const made of fields.values()) made.fail("");
  try {
    const made = await ask("studies", sent);
    drawer.close();
    say("good", `The study ${made.name} has started.`);
    open.add(made.id);
  } catch (error) {
    const bad = Object.keys(error.fields ?? {}).filter((name) => fields.has(name));
    for (const name of bad) fields.get(name).fail(error.fields[name]);
    const others = Object.entries(error.fields ?? {}).filter(([name]) => !fields.has(name)).map(([, sentence]) => sentence);
    answer.replaceChildren(note("bad", "Can't start the study.", bad.length ? others.join(" ") : error.message));
    if (bad.length) fields.get(bad[0]).control.focus();
  } finally {
    start.disabled = false;
  }
  refresh();
}

function fillPicker() {
  const rest = settings.filter((each) => READS.test(each.name) && !fields.has(each.name) && !each.why_fixed && !(kind() === "sweep" && each.name === "ppo.kl_weight") && each.name !== "optimize.method");
  picker.replaceChildren(new Option("Choose a setting", ""), ...rest.map((each) => new Option(`${each.label} (${each.name})`, each.name)));
}

picker.addEventListener("change", () => {
  const chosen = settings.find((each) => each.name === picker.value);
  if (!chosen) return;
  const made = field(chosen, { prefix: "study", value: chosen.value });
  const drop = Object.assign(make("button", "ks-reset", "Remove"), { type: "button" });
  drop.addEventListener("click", () => {
    fields.delete(chosen.name);
    made.element.remove();
    fillPicker();
    picker.focus();
  });
  made.element.append(drop);
  fields.set(chosen.name, made);
  changedBox.append(made.element);
  fillPicker();
  made.control.focus();
});

function freeName() {
  const taken = new Set(state.studies.filter((each) => each.kind === kind()).map((each) => each.name));
  for (let i = 1; ; i++) if (!taken.has(`${BASES[kind()]}-${i}`)) return `${BASES[kind()]}-${i}`;
}

async function show() {
  const { offer } = state;
  if (!settings) {
    const { data, error } = await attempt("settings");
    if (error) return say("bad", error);
    settings = texts(data);
  }
  fields = new Map();
  changedBox.replaceChildren();
  answer.replaceChildren();
  form.reset();
  for (const radio of form.elements.kind) radio.disabled = Boolean(refusal(radio.value));
  [...form.elements.kind].find((radio) => !radio.disabled).checked = true;
  if (offer.retrain) retrained.fill(form, offer.retrain, span);
  if (offer.run) form.elements.kl_weight.value = [...new Set([0, offer.kl_weight / 2, offer.kl_weight, offer.kl_weight * 2, offer.kl_weight * 4])].map((each) => +each.toPrecision(3)).join(", ");
  const methods = drawer.querySelector(".st-methods");
  methods.replaceChildren(make("legend", "", "Methods"), ...offer.methods.map((each) => {
    const label = make("label"), pick = Object.assign(make("input"), { type: "checkbox", value: each, defaultChecked: !EXTRA.has(each), disabled: each === "sft" });
    label.append(pick, make("span", "", each === "sft" ? "SFT, the reference" : METHODS[each] ?? each));
    return label;
  }));
  form.elements.name.value = freeName();
  for (const name of ["name", ...Object.values(FIELDS).flat()]) wrong(name, "");
  showKind();
  fillPicker();
  start.disabled = false;
  if (!drawer.isConnected) {
    document.querySelector("#study-drawer")?.remove(); // Gradio can run this script again
    document.querySelector(".gradio-container .contain").append(drawer); // Gradio limits media queries to it
  }
  drawer.showModal();
  drawer.querySelector(".ks-drawer-body").scrollTop = 0;
  form.elements.name.focus({ preventScroll: true });
  form.elements.name.select();
}

opener.addEventListener("click", show);
for (const radio of form.elements.kind) {
  radio.addEventListener("change", () => {
    form.elements.name.value = freeName();
    showKind();
    fillPicker();
  });
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  begin();
});
drawer.querySelector(".ks-close").onclick = drawer.querySelector(".ks-cancel").onclick = () => drawer.close();
drawer.onclick = (event) => {
  if (event.target === drawer) drawer.close(); // the backdrop
};

// A section that is not open has no size; it is filled when it is opened.
new IntersectionObserver(refresh).observe(element);
setInterval(() => {
  if (state.studies.some((each) => each.status === "running") || Date.now() % 9000 < 3000) refresh();
}, 3000);
refresh();
