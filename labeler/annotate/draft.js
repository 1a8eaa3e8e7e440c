// What is said of the pair on the screen besides the verdict: strength, criteria, comment.

const EMPTY = { strength: null, criteria: {}, comment: "" };

class Draft {
  // `changed()` after everything the annotator does to it.
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

  // Pressing what is pressed takes it back.
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
