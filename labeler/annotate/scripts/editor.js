// "Edit the better response": the annotator improves the response that they prefer.  The edit is part
// of the judgment that prefers it.

class Editor {
  // `send(outcome, strength, edit)` judges the pair; `changed(edits)` keeps unsent edits by side.
  constructor({ send, changed }) {
    this.dialog = $(".editor");
    this.form = this.dialog.querySelector("form");
    this.area = this.dialog.querySelector("textarea");
    this.send = send;
    this.changed = changed;
    this.form.which.forEach((radio) => (radio.onchange = () => this.choose(radio.value)));
    for (const option of this.dialog.querySelectorAll(".option")) option.onclick = ({ currentTarget, detail }) => detail && this.take(currentTarget.querySelector("input").value); // an arrow key clicks, too
    this.dialog.onkeydown = (event) => this.press(event);
    this.area.oninput = () => this.write();
    this.form.onsubmit = (event) => this.submit(event);
    this.dialog.querySelector("[data-do=leave-editor]").onclick = () => this.dialog.close();
  }

  // `edits` are earlier ones by side, `side` is chosen already, if any.
  open(pair, { edits, side, strength, required }) {
    this.pair = pair;
    this.edits = { ...edits };
    this.required = required;
    this.form.reset();
    for (const each of ["a", "b"]) this.dialog.querySelector(`.option.${each} p`).textContent = pair[each].text;
    if (strength) this.form.by.value = String(strength);
    this.choose(side ?? Object.keys(edits)[0] ?? null);
    this.dialog.showModal();
    if (this.side) this.area.focus();
  }

  choose(side) {
    this.side = side;
    if (side) this.form.which.value = side;
    const tooLong = side && this.pair[side].text.length > this.area.maxLength;
    this.area.disabled = !side || tooLong;
    this.area.value = side && !tooLong ? (this.edits[side] ?? this.pair[side].text) : "";
    this.say(tooLong ? t("This response has more than {count} characters and cannot be edited here.", { count: this.area.maxLength }) : "");
    this.compare();
  }

  // With its key or a click anywhere on it; then the annotator goes on writing.
  take(side) {
    if (side !== this.side) this.choose(side);
    this.area.focus();
  }

  // The keys that judge a pair choose here.
  press(event) {
    if (keys.off || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target === this.area) return;
    const [first, word] = keys.find(event)?.id.split("-") ?? [];
    const strength = Object.keys(STRENGTHS).find((by) => STRENGTHS[by] === (word ?? first));
    const side = ["a", "b"].includes(first) ? first : null;
    if (!strength && !side) return;
    event.preventDefault();
    if (strength) this.form.by.value = strength;
    if (side) this.take(side);
  }

  write() {
    if (this.isChanged) this.edits[this.side] = this.area.value;
    else delete this.edits[this.side];
    this.say("");
    this.compare();
    this.changed(this.edits);
  }

  get isChanged() {
    return this.area.value.trim() !== this.pair[this.side].text.trim();
  }

  compare() {
    const place = this.dialog.querySelector(".edits");
    place.hidden = this.area.disabled || !this.isChanged;
    place.replaceChildren(...(place.hidden ? [] : changesBetween(this.pair[this.side].text, this.area.value)));
  }

  submit(event) {
    event.preventDefault();
    const by = Number(this.form.by.value) || undefined;
    if (!this.side) this.say(t("First choose which response is better."));
    else if (this.area.disabled) return;
    else if (this.required && !by) this.say(t("First choose how much better the response is: slightly, clearly or much."));
    else if (!this.isChanged) this.say(t("You have changed nothing. Cancel, then choose A or B."));
    else if (!this.area.value.trim()) this.say(t("The response is empty."));
    else {
      this.dialog.close();
      this.send(this.side, by, this.area.value);
    }
  }

  say(sentence) {
    this.dialog.querySelector("[role=status]").textContent = sentence;
  }
}

// The edited text with what was added (ins) and removed (del).
function changesBetween(before, after) {
  const [a, b] = [before, after].map((text) => [...segmenter.segment(text)].map(({ segment }) => segment));
  const only = unmatched(a, b);
  if (!only) return [make("p", "", t("The changes are too many to show."))];
  const parts = []; // [tag, text]
  const add = (tag, text) => (parts.at(-1)?.[0] === tag ? (parts.at(-1)[1] += text) : parts.push([tag, text]));
  for (let [i, j] = [0, 0]; i < a.length || j < b.length; ) {
    if (only[0].has(i)) add("del", a[i++]);
    else if (only[1].has(j)) add("ins", b[j++]);
    else {
      add("span", b[j]);
      [i, j] = [i + 1, j + 1];
    }
  }
  return parts.map(([tag, text]) => make(tag, "", text));
}
