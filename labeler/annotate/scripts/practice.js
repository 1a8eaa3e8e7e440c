// The explanation after a practice pair.  The next pair is on the screen by then, so the dialog shows
// the two responses again.

class Practice {
  constructor() {
    this.dialog = $("dialog.practice");
    this.waiting = []; // explanations that are not shown yet
    // Capturing, because this event does not bubble.
    element.addEventListener("close", () => $("dialog[open]") || this.show(), true);
  }

  // Explanations that arrive together, as after a pause in the connection, wait for each other, and for
  // another dialog.  `pair` is unknown for an act of an earlier page.
  explain(practice, act, pair) {
    this.waiting.push({ practice, act, pair });
    if (!$("dialog[open]")) this.show();
  }

  forget() {
    this.waiting = [];
  }

  show() {
    const next = this.waiting.shift();
    if (!next) return;
    const { practice, act, pair } = next;
    const part = (selector) => this.dialog.querySelector(selector);
    part("h2").textContent = practice.matched
      ? t("As expected")
      : t("Expected: {judgment}", { judgment: OUTCOMES[practice.answer] });
    part(".given").textContent = t("Your choice: {judgment}. “{prompt}”", { judgment: act.note.what, prompt: act.note.prompt });
    const cards = pair ? ["a", "b"].map((side) => this.card(side, pair, practice, act.body.outcome)) : [];
    part(".cards").replaceChildren(...cards);
    typesetAll(...part(".cards").querySelectorAll(".text"));
    part(".why").innerHTML = practice.html; // rendered by the server, as responses are
    outline(part(".why"), 2);
    typesetEach(part(".why"));
    part(".left").textContent = practice.left
      ? tn(practice.left, "{count} more practice pair.", "{count} more practice pairs.")
      : t("This was the last practice pair. Your judgments count from now on.");
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
  }

  card(side, pair, { answer }, outcome) {
    const marks = [];
    if (side === answer) marks.push(t("Expected"));
    if (side === outcome) marks.push(t("Your choice"));
    return makeCard(side, side === "a" ? t("Response A") : t("Response B"), pair[side], marks);
  }
}
