// "What did my labels do?": prompts that the annotator judged, with their choice and a new policy's answer.

class Changes {
  constructor(annotator) {
    this.annotator = annotator;
    this.dialog = $(".changes");
    this.select = this.dialog.querySelector("select");
    this.asked = 0; // number of the latest request: an earlier answer may come after it
    this.select.onchange = () => this.load(this.select.value);
  }

  open() {
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.load();
  }

  // The newest iteration, or another one.
  async load(iteration) {
    const asked = ++this.asked;
    this.say(t("Loading …"));
    const query = iteration ? `?iteration=${iteration}` : "";
    let answer = null;
    try {
      answer = await request("GET", `/label/api/follow-ups${query}`, null, this.annotator);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
    }
    if (asked !== this.asked) return;
    if (answer?.status === 200) this.show(answer.data);
    else this.show({ iterations: [], pairs: [], problem: answer ? t(answer.data.error) : t("No connection: the answers cannot be loaded now.") });
  }

  show({ iterations, iteration, judgments, total, blocked, withheld, pairs, problem }) {
    const options = iterations.map((number) => new Option(number, number, false, number === iteration));
    this.select.replaceChildren(...options);
    this.dialog.querySelector(".which").hidden = iterations.length < 2;
    this.dialog.querySelector(".honest").hidden = !iterations.length;
    this.dialog.querySelector(".refused").hidden = !blocked;
    this.dialog.querySelector("ol").replaceChildren(...pairs.map((pair) => this.row(pair)));
    this.dialog.querySelector(".withheld").textContent = withheld
      ? tn(withheld, "{count} more is not shown: you may still be asked about one of its responses.", "{count} more are not shown: you may still be asked about one of their responses.")
      : "";
    this.say(problem ?? this.summary(iteration, judgments, total));
  }

  summary(iteration, judgments, total) {
    if (!iteration) return t("Nothing yet. After the model is trained again, its answers to some prompts that you judged appear here.");
    return tn(
      judgments,
      "Your {count} judgment was among the {total} that trained the reward model of iteration {iteration}.",
      "Your {count} judgments were among the {total} that trained the reward model of iteration {iteration}.",
      { total, iteration },
    );
  }

  row(pair) {
    const row = make("li");
    const asked = make("div", "asked");
    const turns = pair.prompt.map((message) => makeTurn(message, false, false));
    asked.append(...collapsed(turns, pair.prompt, { history: false }));
    const cards = make("div", "cards");
    const made = ["a", "b"].map((side) => this.card(side, side === "a" ? t("Response A") : t("Response B"), pair[side], pair));
    const answer = this.card("new", t("New answer"), pair.new, pair);
    cards.append(...made, answer);
    typesetAll(...cards.querySelectorAll(".text"));
    for (const text of cards.querySelectorAll(".text")) addCodeBars(text);
    row.append(asked, cards);
    if (!pair.formatted) row.append(make("p", "told", t("The three texts are shown without some formatting: one of them cannot be formatted.")));
    return row;
  }

  card(side, name, shown, { outcome, strength, same_as: same }) {
    const marks = [];
    if (side === outcome) marks.push(t("Your choice: {judgment}", { judgment: judgmentInWords({ outcome, strength }) }));
    if (side === "new" && same) marks.push(t("The same as response {side}", { side: same.toUpperCase() }));
    return makeCard(side, name, shown, marks);
  }

  say(sentence) {
    this.dialog.querySelector("[role=status]").textContent = sentence;
  }
}

// A response in a dialog; `marks` are lines that say what it is.
function makeCard(side, name, shown, marks) {
  const card = make("section", `card ${side}`);
  const text = make("div", "text");
  text.dir = "auto";
  fillText(text, shown, false, 3);
  card.append(make("h3", "", name), ...marks.map((mark) => make("p", "mark", mark)), text);
  return card;
}
