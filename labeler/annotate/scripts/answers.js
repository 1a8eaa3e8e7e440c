// Answers of researchers to the annotator's flags: how many are unread, and the list in "My judgments".
// Nobody is interrupted: the count waits in the menu, and screen readers hear a new one once.

class Answers {
  // `seen()` is called when the annotator has read them all.
  constructor(annotator, { seen }) {
    this.annotator = annotator;
    this.seen = seen;
    this.panel = $(".drawer .answers");
    this.unread = 0;
    this.asked = 0; // number of the latest request: an earlier answer may come after it
  }

  // Shows the count; returns what to announce, or "".  The copy of an earlier version has no count.
  count(unread = 0) {
    const news = unread ? tn(unread, "{count} new answer", "{count} new answers") : "";
    for (const node of $$(".news")) node.textContent = news;
    $(".menu .count").hidden = !unread;
    $(".menu .count").textContent = unread || "";
    const more = unread > this.unread;
    this.unread = unread;
    return more ? tn(unread, "{count} new answer to your flags in My judgments.", "{count} new answers to your flags in My judgments.") : "";
  }

  // The list; without a connection, the one that was shown before.
  async load() {
    const asked = ++this.asked;
    const found = await this.ask("GET", "/label/api/flag-answers");
    if (!found || asked !== this.asked) return;
    const { answers } = found;
    const unread = answers.filter(({ read }) => !read).map(({ id }) => id);
    this.panel.hidden = !answers.length;
    this.panel.open = unread.length > 0;
    this.panel.querySelector("ul").replaceChildren(...answers.map((answer) => this.row(answer)));
    if (unread.length && (await this.ask("POST", "/label/api/flag-answers/read", { answers: unread }))) this.seen();
  }

  // The server's answer, or null.
  async ask(method, path, body = null) {
    try {
      const { status, data } = await request(method, path, body, this.annotator);
      return status === 200 ? data : null;
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      return null;
    }
  }

  row({ text, created_at: at, read, comment, prompt }) {
    const row = make("li");
    const asked = make("q", "", prompt.replace(/\s+/g, " ").trim() || t("(empty prompt)"));
    asked.dir = "auto";
    // Isolated: the comment may run in the other direction.
    const reason = make("p", "own", comment ? t("Your comment: {comment}", { comment: `\u2068${comment}\u2069` }) : t("You wrote no comment."));
    const head = make("p", "from", t("The researcher"));
    const time = make("time", "", momentInWords(at));
    time.dateTime = at;
    head.append(time);
    if (!read) head.append(make("b", "", t("New")));
    const said = make("p", "said", text);
    said.dir = "auto";
    row.append(asked, reason, head, said);
    return row;
  }
}
