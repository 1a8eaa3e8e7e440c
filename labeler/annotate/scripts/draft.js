// The annotator's unsent input for a pair besides the outcome: strength, criteria and comment.

const EMPTY = { strength: null, criteria: {}, comment: "" };
const FORGET = 7 * 24 * 3600 * 1000; // milliseconds after which a draft is deleted

// Unsent drafts, one for each annotator and pair.  Like the outbox, they survive a reload.
class Drafts {
  constructor(annotator) {
    this.prefix = `kitestring.draft.${annotator}.`;
    this.kept = new Map(); // for a browser without localStorage
    this.tidy();
  }

  keep(pair, said) {
    const empty = !said.strength && !said.comment && !Object.keys(said.criteria).length;
    if (empty) return this.forget(pair);
    this.kept.set(pair.id, said);
    this.store(() => localStorage.setItem(this.prefix + pair.id, JSON.stringify({ ...said, at: Date.now() })));
  }

  forget(pair) {
    this.kept.delete(pair.id);
    this.store(() => localStorage.removeItem(this.prefix + pair.id));
  }

  of(pair) {
    const { strength, criteria, comment } = this.kept.get(pair.id) || this.stored(this.prefix + pair.id);
    return { strength: strength || null, criteria: criteria || {}, comment: comment || "" };
  }

  stored(key) {
    try {
      return JSON.parse(localStorage.getItem(key)) || EMPTY;
    } catch {
      return EMPTY; // no storage, or unreadable: losing a draft is acceptable
    }
  }

  tidy() {
    this.store(() => {
      for (const key of Object.keys(localStorage).filter((each) => each.startsWith(this.prefix))) {
        if (!(this.stored(key).at > Date.now() - FORGET)) localStorage.removeItem(key);
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
    $(".criteria").replaceChildren(...Object.entries(CRITERIA).flatMap((row) => this.criterionRow(...row)));
    for (const button of $$("[data-strength]")) {
      button.onclick = () => this.setStrength(Number(button.dataset.strength));
    }
  }

  criterionRow(name, label) {
    const group = make("div", "segments");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", label);
    for (const [side, text] of [["a", "A"], ["tie", "same"], ["b", "B"]]) {
      const button = make("button", side, text);
      button.type = "button";
      button.dataset.criterion = name;
      button.dataset.side = side;
      button.setAttribute("aria-pressed", "false");
      button.onclick = () => this.setCriterion(name, side);
      group.append(button);
    }
    return [make("span", "", label), group];
  }

  clear() {
    this.restore(EMPTY);
  }

  // Pressing a selected button again clears it.
  setStrength(strength) {
    this.strength = this.strength === strength ? null : strength;
    this.show();
    this.changed();
  }

  setCriterion(name, side) {
    if (this.criteria[name] === side) delete this.criteria[name];
    else this.criteria[name] = side;
    this.show();
    this.changed();
  }

  read() {
    return { strength: this.strength, criteria: { ...this.criteria }, comment: $(".comment textarea").value.trim() };
  }

  restore({ strength, criteria, comment }) {
    this.strength = strength;
    this.criteria = { ...criteria };
    $(".comment textarea").value = comment;
    this.show();
  }

  show() {
    for (const button of $$("[data-strength]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.strength) === this.strength));
    }
    for (const button of $$("[data-criterion]")) {
      const pressed = this.criteria[button.dataset.criterion] === button.dataset.side;
      button.setAttribute("aria-pressed", String(pressed));
    }
  }
}
