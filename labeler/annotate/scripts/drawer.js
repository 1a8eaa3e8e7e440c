// "My judgments": a panel with the annotator's own judgments, from which a pair is opened again.
// It is modal, so no shortcut reaches the pair behind it.

const TYPING = 250; // milliseconds without a key until a search begins

class Drawer {
  // `reopen(judgment)` shows a judgment's pair, or returns why it cannot.
  // `unsaved()` counts the judgments that the server does not have yet; `opened()` fills the rest.
  constructor(annotator, { reopen, unsaved, opened }) {
    this.annotator = annotator;
    this.opened = opened;
    this.reopen = reopen;
    this.unsaved = unsaved;
    this.dialog = $(".drawer");
    this.list = this.dialog.querySelector(".list");
    this.field = this.dialog.querySelector("input");
    this.further = this.dialog.querySelector(".further");
    this.asked = 0; // number of the latest request: an earlier answer may come after it
    this.timer = null;
    this.field.oninput = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), TYPING);
    };
    this.field.onkeydown = (event) => {
      if (["Enter", "Escape"].includes(event.key)) event.preventDefault();
      if (event.key === "Escape") this.dialog.close(); // browsers would first clear the field
    };
    this.further.onclick = () => this.load(this.list.lastElementChild.dataset.judgment);
  }

  open() {
    this.field.value = "";
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.list.replaceChildren(); // a judgment of the earlier list may have been revised
    this.opened();
    this.load();
  }

  // After an act was saved: a row may stand for a judgment that the act replaced.
  async refresh() {
    if (!this.dialog.open) return;
    const rows = [...this.list.children];
    const focused = rows.findIndex((row) => row.contains(document.activeElement));
    await this.load();
    if (focused >= 0) this.list.children[focused]?.firstElementChild.focus();
  }

  // The list from its beginning, or the judgments before one of them.
  async load(before) {
    const search = this.field.value.trim();
    const asked = ++this.asked;
    this.further.hidden = true;
    if (!before) this.say(t("Loading …"));
    const query = new URLSearchParams(before ? { search, before } : { search });
    const { status, data } = await this.ask(`/label/api/judgments?${query}`);
    if (asked !== this.asked) return;
    if (!before) this.list.replaceChildren();
    if (status !== 200) return this.say(t(data.error));
    const rows = data.judgments.map((judgment) => this.row(judgment));
    this.list.append(...rows);
    if (before) rows[0]?.firstElementChild.focus();
    this.further.hidden = !data.more;
    this.say(this.summary(search));
  }

  // {status, data}; without a connection, `data` says so.
  async ask(path) {
    try {
      return await request("GET", path, null, this.annotator);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      return { status: 0, data: { error: t("No connection: the list cannot be loaded now.") } };
    }
  }

  summary(search) {
    const kept = this.unsaved();
    const missing = kept ? ` ${t("Not saved yet, and not listed: {count}.", { count: kept })}` : "";
    if (this.list.childElementCount) return t("Newest first.") + missing;
    return (search ? t("No judged pair contains “{search}”.", { search }) : t("You have no judgments yet.")) + missing;
  }

  row({ id, outcome, strength, edited, live, prompt, created_at: at }) {
    const button = make("button", "given");
    button.type = "button";
    const text = make("q", "", prompt.replace(/\s+/g, " ").trim() || t("(empty prompt)"));
    text.dir = "auto";
    const time = make("time", "", momentInWords(at));
    time.dateTime = at;
    const judgment = make("span", "", editedInWords(judgmentInWords({ outcome, strength }), edited));
    const from = live ? [make("span", "from", t("Live conversation"))] : [];
    button.append(text, judgment, ...from, time, make("span", "reopen", t("Reopen")));
    button.onclick = () => this.choose(id);
    const row = make("li");
    row.dataset.judgment = id;
    row.append(button);
    return row;
  }

  // {status, data} of a judgment with its pair.
  find(id) {
    return this.ask(`/label/api/judgments/${encodeURIComponent(id)}`);
  }

  async choose(id) {
    const asked = ++this.asked;
    const { status, data } = await this.find(id);
    if (asked !== this.asked || !this.dialog.open) return;
    if (status === 404) {
      await this.refresh();
      return this.say(t("This judgment was changed or undone, perhaps in another tab. The list is up to date again."));
    }
    const problem = status === 200 ? this.reopen(data) : t(data.error);
    if (problem) this.say(problem);
    else this.dialog.close();
  }

  say(sentence) {
    this.dialog.querySelector("[role=status]").textContent = sentence;
  }
}

// "14:05" today, else with the date.
function momentInWords(iso) {
  const moment = new Date(iso);
  const today = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString(numbers, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

// The bar over the choices while an earlier judgment is revised, and the mark on what was chosen.
// `judgment` is null for other pairs.
function showRevision(judgment) {
  $(".desk").classList.toggle("revises", Boolean(judgment));
  $(".revising").hidden = !judgment;
  for (const button of $$(".choice.earlier")) {
    button.classList.remove("earlier");
    button.removeAttribute("aria-description");
  }
  if (!judgment) return;
  const { outcome, strength, created_at: at } = judgment;
  $(".revising span").textContent = t("You judged this pair ({moment}): {judgment}. A different choice replaces it.", {
    moment: momentInWords(at),
    judgment: editedInWords(judgmentInWords(judgment), judgment.edit),
  });
  const chosen = $$(".choice").find(({ dataset }) => dataset.outcome === outcome && (!dataset.by || Number(dataset.by) === strength));
  chosen?.classList.add("earlier");
  chosen?.setAttribute("aria-description", t("your earlier judgment"));
}
