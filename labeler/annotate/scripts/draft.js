// The annotator's unsent input for a pair besides the outcome: strength, criteria, reason tags, safety
// labels, marks, comment and unsent edits of the responses, by side.

const EMPTY = { strength: null, criteria: {}, reasons: {}, safety: {}, comment: "", edits: {}, marks: {} };
const SAFETY = { safe: t("Safe"), borderline: t("Borderline"), unsafe: t("Unsafe") };
const PARTS = ["criteria", "reasons", "safety", "comment"]; // of the details, beside the strength
const FORGET = 7 * 24 * 3600 * 1000; // milliseconds after which a draft is deleted

// Unsent drafts, one for each annotator and pair.  Like the outbox, they survive a reload.
class Drafts {
  constructor(annotator) {
    this.prefix = `kitestring.draft.${annotator}.`;
    this.kept = new Map(); // for a browser without localStorage
    this.tidy();
  }

  // `before` is what the annotator sees without a draft.
  keep(pair, said, before = EMPTY) {
    const parts = (all) => JSON.stringify(Object.keys(EMPTY).map((part) => all[part] ?? EMPTY[part]));
    if (parts(said) === parts(before)) return this.forget(pair);
    this.kept.set(pair.id, said);
    this.store(() => localStorage.setItem(this.prefix + pair.id, JSON.stringify({ ...said, at: Date.now() })));
  }

  forget(pair) {
    this.kept.delete(pair.id);
    this.store(() => localStorage.removeItem(this.prefix + pair.id));
  }

  of(pair, before = EMPTY) {
    const { at, ...said } = this.kept.get(pair.id) || this.stored(this.prefix + pair.id) || before;
    return { ...EMPTY, ...said };
  }

  stored(key) {
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch {
      return null; // no storage, or unreadable: losing a draft is acceptable
    }
  }

  // A text that is not part of a judgment, such as the reason for a flag.
  keepText(name, text) {
    this.keep({ id: name }, { ...EMPTY, comment: text });
  }

  textOf(name) {
    return this.of({ id: name }).comment;
  }

  tidy() {
    this.store(() => {
      for (const key of Object.keys(localStorage).filter((each) => each.startsWith(this.prefix))) {
        if (!(this.stored(key)?.at > Date.now() - FORGET)) localStorage.removeItem(key);
      }
    });
  }

  store(write) {
    try {
      write();
    } catch {
      // Private mode or full: drafts last as long as the page.
    }
  }
}

class Draft {
  // Calls `changed()` after every change by the annotator.
  constructor({ changed }) {
    this.changed = changed;
    this.clear();
    $(".comment textarea").oninput = () => this.changed();
    $(".details").addEventListener("keydown", (event) => moveByArrows(event));
    for (const button of $$("[data-strength]")) {
      button.onclick = () => this.setStrength(Number(button.dataset.strength));
    }
  }

  // Make the parts that the project's form has.
  use({ criteria, reasons, safety, rationale }) {
    $(".criteria").replaceChildren(...criteria.flatMap((name) => this.criterionRow(name, CRITERIA[name])));
    $(".criteria").hidden = !criteria.length;
    $(".safety").replaceChildren(...["a", "b"].flatMap((side) => this.safetyRow(side, side.toUpperCase())));
    $(".safety").hidden = safety === "off";
    $(".reasons").replaceChildren(...["a", "b"].flatMap((side) => this.reasonRow(side, side.toUpperCase(), reasons)));
    $(".reasons").hidden = !reasons.length;
    for (const title of $$(".details > [role=group] > :first-child")) title.append(" ", keyHint());
    $(".comment").hidden = rationale === "off";
    $(".comment b").textContent = rationale === "required" ? t("Rationale (required)") : t("Comment");
    const [why, whyOptional] = [t("Why did you decide this way?"), t("Why did you decide this way? (optional)")];
    $(".comment textarea").placeholder = rationale === "required" ? why : whyOptional;
    this.show();
  }

  criterionRow(name, label) {
    const sides = [["a", "A"], ["tie", t("same")], ["b", "B"]];
    const buttons = sides.map(([side, text]) => this.option(side, text, { criterion: name, side }, () => this.choose("criteria", name, side)));
    return [make("span", "", label), groupOf("segments", label, buttons)];
  }

  safetyRow(side, name) {
    const labels = Object.entries(SAFETY);
    const buttons = labels.map(([label, text]) => this.option(side, text, { safety: label, side }, () => this.choose("safety", side, label)));
    return [make("span", "", t("Safety of {side}", { side: name })), groupOf("segments", t("Safety of response {side}", { side: name }), buttons)];
  }

  reasonRow(side, name, tags) {
    const buttons = tags.map((tag) => this.option(side, tag, { reason: tag, side }, () => this.toggleReason(side, tag)));
    return [make("span", "", t("Reasons for {side}", { side: name })), groupOf("tags", t("Reasons for response {side}", { side: name }), buttons)];
  }

  option(className, text, data, onclick) {
    const button = make("button", className, text);
    button.type = "button";
    Object.assign(button.dataset, data);
    button.onclick = onclick;
    return button;
  }

  clear() {
    this.restore(EMPTY);
  }

  // Pressing a selected button again clears it.
  setStrength(strength) {
    this.strength = this.strength === strength ? null : strength;
    this.given = null;
    this.show();
    this.changed();
  }

  // By its key: whoever judges again presses it as the first time, so a strength that came with an
  // earlier judgment stays.
  pressStrength(strength) {
    if (this.given === strength) this.given = null;
    else this.setStrength(strength);
  }

  // `part` is criteria or safety.
  choose(part, name, value) {
    if (this[part][name] === value) delete this[part][name];
    else this[part][name] = value;
    this.show();
    this.changed();
  }

  toggleReason(side, tag) {
    const tags = this.reasons[side] ?? [];
    this.reasons[side] = tags.includes(tag) ? tags.filter((each) => each !== tag) : [...tags, tag];
    if (!this.reasons[side].length) delete this.reasons[side];
    this.show();
    this.changed();
  }

  setEdits(edits) {
    this.edits = { ...edits };
    this.changed();
  }

  setMarks(marks) {
    this.marks = structuredClone(marks);
    this.changed();
  }

  read() {
    const { strength, criteria, reasons, safety, edits, marks } = this;
    const comment = $(".comment textarea").value.trim();
    return structuredClone({ strength, criteria, reasons, safety, comment, edits, marks });
  }

  restore(said) {
    const { comment, ...others } = structuredClone({ ...EMPTY, ...said });
    Object.assign(this, others);
    this.given = this.strength;
    $(".comment textarea").value = comment;
    this.show();
  }

  show() {
    for (const button of $$("[data-strength]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.strength) === this.strength));
    }
    for (const button of $$(".details button")) {
      const { criterion, safety, reason, side } = button.dataset;
      const pressed = criterion ? this.criteria[criterion] === side : safety ? this.safety[side] === safety : this.reasons[side]?.includes(reason);
      button.setAttribute("aria-pressed", String(Boolean(pressed)));
    }
  }
}

// `Keys` fills it.
function keyHint() {
  const hint = make("kbd");
  hint.setAttribute("aria-hidden", "true");
  return hint;
}

function groupOf(className, label, buttons) {
  const group = make("div", className);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  group.append(...buttons);
  return group;
}

// Left and right go through the buttons of a group, up and down to the group before and after it.
function moveByArrows(event) {
  const group = event.target.closest(".details [role=group] [role=group]");
  const right = $(".desk").dir === "rtl" ? -1 : 1;
  const step = { ArrowLeft: -right, ArrowUp: -1, ArrowRight: right, ArrowDown: 1 }[event.key];
  if (!group || !step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation(); // an arrow may also be a shortcut
  const across = ["ArrowLeft", "ArrowRight"].includes(event.key);
  const all = across ? [...group.children] : $$(".details [role=group] [role=group]").filter((each) => each.checkVisibility());
  const next = all[all.indexOf(across ? event.target : group) + step];
  (across ? next : next?.firstElementChild)?.focus();
}
