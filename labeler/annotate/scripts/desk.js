// The page's controller; `wire` maps buttons and keys to methods.

const HISTORY = 50; // latest acts of this page, which it can undo without asking the server
const UNREAD = 250; // milliseconds in which nobody can read a pair: a judgment is then a slip

const FORM = { scale: "two-step", strength: "optional", criteria: Object.keys(CRITERIA), reasons: [], rationale: "optional", safety: "off", marks: false };
const MISSING = {
  safety: t("First label both responses: safe, borderline or unsafe."),
  comment: t("First write why you decide this way. Ctrl+Enter sends the judgment."),
};
const MENUS = ":is(.menu, .more)";

class Desk {
  constructor(person, progress, copy, copied) {
    this.person = person;
    const revising = recall(this.revising, "sessionStorage");
    this.copy = copy;
    this.history = [];
    this.shown = null;
    this.unsaid = ""; // the act that the next announcement begins with
    this.judging = false; // whether a pair was shown since the page last said that none is left
    this.known = new WeakSet(); // pairs that were on the screen before
    this.fresh = false; // whether the pair is on the screen for the first time
    this.texts = { plain: false, differences: false }; // how the responses are shown
    this.everSaved = false;
    this.practice = new Practice();
    this.restored = new Set(); // revisions that restored an earlier judgment, made by an undo
    this.stopwatch = new Stopwatch();
    this.draft = new Draft({ changed: () => this.drafted() });
    this.drafts = new Drafts(person.id);
    this.outbox = new Outbox(person.id, {
      changed: () => {
        showOutbox(this.outbox, this.everSaved);
        this.showVerdict();
      },
      saved: (act, data) => this.saved(act, data),
      discarded: (act) => {
        if (this.history.at(-1)?.id === act.id) showTrace("");
        this.history = this.history.filter(({ id }) => id !== act.id);
        this.showVerdict();
      },
      settled: () => this.copy.latest,
      turnedAway: () => {
        this.live.leave();
        this.buffer.stop("somebody-else");
        this.buffer.fill(); // asks until this person has signed in again
      },
    });
    this.buffer = new PairBuffer(person.id, {
      held: () => this.outbox.comparisons,
      changed: () => this.show(),
      shown: recall(`shown.${person.id}`),
      copy,
      copied: this.unanswered(copied),
    });
    this.counts = new Counts(person.id, progress, {
      waiting: () => this.outbox.waiting.length > 0,
      changed: () => {
        this.copy.keepPerson(this.person, this.counts.progress);
        const news = this.answers.count(this.counts.progress.unread_answers);
        if (news) announce(news);
        this.showVerdict();
      },
    });
    this.answers = new Answers(person.id, {
      seen: () => this.counts.count({ unread_answers: 0 }),
    });
    this.drawer = new Drawer(person.id, {
      opened: () => this.answers.load(),
      reopen: (found) => this.reopen(found),
      unsaved: () => this.outbox.acts.filter(({ path }) => path?.endsWith("/judgments")).length,
    });
    this.changes = new Changes(person.id);
    this.live = new Live(person.id, {
      changed: () => this.show(),
      offered: () => {
        this.formShown = "";
        this.showForm();
      },
      ready: (pair) => this.buffer.putBack(pair),
      left: () => this.buffer.leaveOut((pair) => pair.live),
      drafts: this.drafts,
      unsaved: (comparison) => this.outbox.waiting.some(({ body }) => body.comparison === comparison),
    });
    this.editor = new Editor({
      send: (outcome, by, edit) => this.judge(outcome, by, edit),
      changed: (edits) => this.draft.setEdits(edits),
    });
    this.marks = new Marks({
      changed: (marks) => this.draft.setMarks(marks),
      redraw: () => this.showTexts(),
      tell: (sentence) => this.tell(sentence),
    });
    showPerson(person);
    showProgress(progress);
    this.unsaid = `${this.answers.count(progress.unread_answers)} `.trimStart();
    this.wire();
    this.showForm();
    this.buffer.fill();
    this.outbox.send();
    this.resumeRevision(revising);
    setInterval(() => this.refresh(), REFRESH);
  }

  // Screen

  show() {
    const pair = this.buffer.current;
    if (this.live.active && !pair?.live && !pair?.revises) {
      this.shown = null;
      showRevision(null);
      if (showState("live")) this.enterLive();
    } else if (!pair) {
      // Leaving the page would lose acts that are only in memory.
      if (this.buffer.reason === "signed-out" && !this.outbox.hasVolatileActs) return location.assign("/sign-in?next=/label/");
      // The last answer is older than these judgments; a new one has been requested.
      const reason = this.buffer.reason === "labeling" && this.buffer.fetching ? "loading" : this.buffer.reason;
      const state = reason === "loading" ? "loading" : "idle";
      if (state === "idle" && this.judging) this.say(IDLE[reason]?.[0] || IDLE.labeling[0]);
      if (state === "idle") this.judging = false;
      showState(state);
      showIdle(reason, this.counts.progress.today, this.buffer.withOthers);
      this.shown = null;
      showRevision(null);
    } else if (pair !== this.shown) {
      if (!this.shown) this.refresh(); // the counts do not include the new pairs yet
      this.shown = pair;
      this.unsent = null;
      this.judging = true;
      this.fresh = !this.known.has(pair);
      this.known.add(pair);
      this.draft.restore(pair.revises ? pair.revises.draft : this.drafts.of(pair));
      remember(this.revising, pair.revises?.id ?? "", "sessionStorage");
      // After a reload, the page goes on with the pair from before.
      if (!pair.revises && !pair.live) remember(`shown.${this.person.id}`, pair.id);
      this.showForm(); // with a new pair: buttons must not change under a finger
      this.live.clear();
      this.showTexts();
      showRevision(pair.revises);
      showState("judging", Boolean(pair.live));
      if (pair.live) showTurn(pair.live);
      // The responses of a new turn stay where they streamed.
      if (!pair.live || !this.fresh) window.scrollTo(0, 0);
      this.stopwatch.start();
      this.tell("");
      this.say(this.announcement(pair));
    }
    this.showVerdict();
    if (this.shown?.live && this.fresh) scrollToResponses($(".prompt").lastElementChild, $(".responses"));
    if (!this.live.active || this.shown) catchFocus();
  }

  enterLive() {
    this.live.show();
    const turn = this.live.over ? "" : `${turnInWords(this.live.nextTurn)}.`; // the page announces why it is over
    this.say(this.unsaid ? turn : `${t("Live conversation")}. ${turn}`);
  }

  showTexts() {
    showPair(this.shown, this.texts);
    this.marks.show(this.shown, this.draft.marks, this.texts.plain);
  }

  announcement({ revises, live }) {
    if (live && this.fresh) return `${t("Both replies are complete.")} ${t("Turn {turn} of {turns}", live)}.`;
    if (revises) return t("An earlier pair: {judgment}.", { judgment: judgmentInWords(revises) });
    return this.fresh ? t("New pair.") : t("The pair that was here before.");
  }

  drafted() {
    const { shown: pair } = this;
    if (pair?.revises) pair.revises.draft = this.draft.read();
    if (pair) this.drafts.keep(draftOf(pair), this.draft.read(), pair.revises && partsOf(pair.revises));
    this.tell("");
  }

  // The form of judging that the project uses; the settings may change while the page is open.
  showForm() {
    const { scale, strength } = this.form;
    $(".strength > span").textContent = strength === "required" ? t("How much better? (required)") : t("How much better?");
    $(".strength").setAttribute("aria-label", strength === "required" ? t("How much better? (required; choose before A or B)") : t("How much better? (optional; choose before A or B)"));
    if (this.formShown === JSON.stringify(this.form)) return;
    this.formShown = JSON.stringify(this.form);
    this.draft.use(this.form);
    this.marks.use(this.form);
    // On a narrow screen they would cover the pair.
    const required = this.form.safety === "required" || this.form.rationale === "required";
    if (required && !NARROW.matches) this.toggleDetails(true);
    if ($(".desk").dataset.scale !== scale) {
      $(".desk").dataset.scale = scale;
      $(".choices").replaceChildren($(`template[data-scale="${scale}"]`).content.cloneNode(true));
    }
    const parts = PARTS.filter((part) => !$(`.details .${part}`).hidden);
    $(".strength ~ [data-do=details]").hidden = !parts.length;
    keys.use(scale, [...(parts.length ? ["details", ...parts] : []), ...(this.live.enabled ? ["live"] : []), ...(this.form.marks ? ["marks"] : [])]);
  }

  // The copy of an earlier version has fewer parts.
  get form() {
    return { ...FORM, ...this.counts.progress.form };
  }

  // Announce the latest act together with what follows: a screen reader may skip the first of two.
  say(sentence) {
    announce(this.unsaid + sentence);
    this.unsaid = "";
  }

  // A person who has signed in since must not undo another person's acts; another tab has its own.
  get undoable() {
    const away = ["somebody-else", "elsewhere"].includes(this.buffer?.reason);
    const last = this.history.at(-1)?.id ?? this.latest;
    // In a live conversation, only its own acts.
    return !away && Boolean(last) && (!this.live?.active || this.live.acts.includes(last));
  }

  showVerdict() {
    showVerdict(Boolean(this.shown) || this.undoable);
    $(".undoing").hidden = Boolean(this.live?.active) && !this.undoable;
  }

  // Another tab takes over.
  async leave() {
    $("dialog[open]")?.close();
    this.live.leave();
    this.history = [];
    this.practice.forget();
    showTrace("");
    this.buffer.stop("elsewhere");
    await this.outbox.rest();
    await this.copy.latest;
  }

  // This tab takes over again.
  enter(copied) {
    this.outbox.resume();
    this.buffer.resume(this.unanswered(copied), recall(`shown.${this.person.id}`));
    this.counts.stale = true;
    this.refresh();
  }

  unanswered(pairs) {
    const answered = this.outbox.answered;
    return pairs.filter(({ id }) => !answered.includes(id));
  }

  refresh() {
    if (document.hidden) return;
    this.counts.refresh();
    this.loadGuidelines();
    if (!this.live.known) this.live.load();
  }

  saved(act, data) {
    this.everSaved = true;
    this.counts.saved(act, data);
    this.drawer.refresh();
    if (data.undone && !act.note.local) this.cameBack(data.undone);
    if (data.practice) this.practice.explain(data.practice, act, this.history.find(({ id }) => id === act.id)?.pair);
  }

  // Acts

  // A repeated key would judge or skip a pair that nobody has read.
  get unread() {
    return this.fresh && this.stopwatch.read() < UNREAD;
  }

  act(path, more, what, inShort = what) {
    const pair = this.shown; // not the buffer's: a live conversation may cover the queue
    if (!pair) return;
    const id = newId();
    this.history.push({ id, pair, inShort, draft: this.draft.read(), revises: Boolean(more.replaces) });
    if (this.history.length > HISTORY) this.history.shift();
    this.buffer.advance();
    for (const draft of [draftOf(pair), flagOf(pair)]) this.drafts.forget(draft);
    this.draft.clear();
    if (pair.live) this.live.answered(id, pair, more.outcome);
    this.outbox.add(path, { id, comparison: pair.id, ...more }, { what, prompt: snippet(pair), live: Boolean(pair.live) });
    this.buffer.fill();
    this.unsaid = `${what}. `;
    showTrace(inShort);
    this.show(); // last: without a pair, it shows whether more have been requested
  }

  // `by`: the strength that a step of the scale states; otherwise it was chosen before.  `edit`: the
  // preferred response, improved; a revision with the same outcome keeps the earlier one.
  judge(outcome, by, edit) {
    if (!this.shown) return;
    if (this.unsent?.outcome === outcome) [by, edit] = [by ?? this.unsent.by, edit ?? this.unsent.edit];
    const said = this.draft.read();
    const strength = by ?? (this.form.scale === "two-step" ? said.strength : null);
    const prefers = outcome === "a" || outcome === "b";
    if (prefers && !strength && this.form.strength === "required") {
      return this.tell(t("First choose how much better the response is: slightly, clearly or much."));
    }
    const missing = this.missingPart(said);
    if (missing) {
      this.unsent = { outcome, by, edit };
      this.goTo(missing);
      return this.tell(MISSING[missing]);
    }
    const body = { outcome, milliseconds: this.stopwatch.read() };
    const earlier = this.shown.revises;
    if (earlier) body.replaces = earlier.id;
    const improved = edit || (earlier?.outcome === outcome ? earlier.edit : "");
    if (improved) body.edit = improved;
    if (prefers && strength) body.strength = strength;
    for (const part of PARTS) if (Object.keys(said[part]).length) body[part] = said[part];
    const marks = marksToSend(this.shown, said.marks);
    if (Object.keys(marks).length) body.marks = marks;
    const { version } = $(".guidelines").dataset;
    if (version) body.guidelines = version;
    // A tie has no strength, which the annotator must hear; an undo brings it back.
    const lost = strength && !prefers ? STRENGTH_TEXTS[strength] : null;
    let [what, inShort] = [judgmentInWords(body), judgmentInShort(body)];
    if (lost) what = t("{judgment}, without the strength “{strength}”", { judgment: what, strength: lost });
    if (lost) inShort = t("{judgment}, no strength", { judgment: inShort });
    [what, inShort] = [what, inShort].map((judgment) => editedInWords(judgment, improved));
    if (earlier) [what, inShort] = [what, inShort].map((judgment) => t("{judgment} (changed)", { judgment }));
    this.act("/label/api/judgments", body, what, inShort);
    flash(outcome);
  }

  pressStrength(by) {
    this.draft.pressStrength(by);
    const { strength } = this.draft.read();
    announce(strength ? t("How much better: {strength}.", { strength: STRENGTH_TEXTS[strength] }) : t("No strength is chosen."));
  }

  edit() {
    const pair = this.shown;
    if (!pair) return;
    const { edits, strength } = this.draft.read();
    const { outcome, edit } = pair.revises ?? {};
    const before = edit ? { [outcome]: edit } : {};
    const side = ["a", "b"].includes(outcome) ? outcome : null;
    this.editor.open(pair, { edits: { ...before, ...edits }, side, strength, required: this.form.strength === "required" });
  }

  // The required part that the draft lacks, if any.
  missingPart({ safety, comment }) {
    if (this.form.safety === "required" && Object.keys(safety).length < 2) return "safety";
    return this.form.rationale === "required" && !comment ? "comment" : null;
  }

  skip() {
    if (this.shown?.revises) return this.tell(t("You have already judged this pair. Choose again, or keep the judgment (Esc)."));
    this.act("/label/api/skip", {}, t("Skipped"));
  }

  flag() {
    const pair = this.shown;
    if (!pair) return;
    const dialog = $(".flagging");
    const reason = dialog.querySelector("textarea");
    reason.value = this.drafts.textOf(flagOf(pair).id);
    reason.oninput = () => this.drafts.keepText(flagOf(pair).id, reason.value);
    dialog.onclose = () => {
      if (dialog.returnValue !== "flag" || this.shown !== pair) return;
      this.act("/label/api/flag", { comment: reason.value.trim() }, t("Flagged"));
    };
    dialog.returnValue = "cancel";
    dialog.showModal();
  }

  // The page undoes its own last act immediately; only the server knows older ones.
  undo() {
    if (this.shown?.revises) return this.leaveRevision();
    if (!this.undoable) return announce(t("There is nothing to undo."));
    const last = this.history.pop();
    if (last && this.outbox.refused.some((act) => act.id === last.id)) {
      this.outbox.remove(last.id);
      this.comeBack(last.pair, last.draft, last.inShort);
    } else if (last?.revises) {
      this.restore(last);
    } else if (last) {
      const note = { what: t("Undo"), prompt: snippet(last.pair), local: true, live: Boolean(last.pair.live) };
      this.comeBack(last.pair, last.draft, last.inShort);
      this.outbox.add("/label/api/undo", { id: newId(), replaces: last.id }, note);
    } else {
      const note = { what: t("Undo"), prompt: "", local: false };
      this.outbox.add("/label/api/undo", { id: newId(), replaces: this.latest }, note);
    }
  }

  // The latest act from before this page was loaded: an unsent one, or the server's latest.
  // The undo names it, so that a late undo cannot withdraw a later act.
  get latest() {
    const undone = this.outbox.waiting.map((act) => act.body.replaces);
    const acts = this.outbox.waiting.filter((act) => !act.path.endsWith("/undo") && !undone.includes(act.id));
    const latest = acts.length ? acts[acts.length - 1].id : this.counts.progress.latest;
    return undone.includes(latest) || this.restored.has(latest) ? null : latest;
  }

  // Revisions

  // Show the pair of an earlier judgment; the pair on the screen follows it.  Returns why not, if so.
  reopen({ judgment, pair }) {
    if (this.shown?.revises) this.leaveRevision();
    const unsent = this.outbox.acts.some(({ body }) => body.comparison === pair.id || body.replaces === judgment.id);
    if (unsent) return t("A change to this judgment is not saved yet. Try again when it is saved.");
    if (this.buffer.pairs.some(({ id }) => id === pair.id)) return t("This pair is already open.");
    pair.revises = { ...judgment };
    pair.revises.draft = this.drafts.of(draftOf(pair), partsOf(judgment));
    this.buffer.putBack(pair);
    return null;
  }

  // After a reload, the page goes on with the judgment that was being revised.
  async resumeRevision(id) {
    const { status, data } = id ? await this.drawer.find(id) : {};
    if (status === 200 && !this.shown?.revises) this.reopen(data);
  }

  get revising() {
    return `revising.${this.person.id}`;
  }

  leaveRevision() {
    this.drafts.forget(draftOf(this.shown));
    this.buffer.advance();
    this.unsaid = `${t("The judgment is kept.")} `;
    this.show();
    this.buffer.fill();
  }

  // Undo of a revision: the earlier judgment is given again, as a revision of its own, because stored
  // judgments never change and a withdrawal would leave the pair without one.
  restore({ id: replaces, pair }) {
    const { outcome, strength, criteria, reasons, safety, comment, edit, milliseconds, guidelines } = pair.revises;
    const marks = marksToSend(pair, pair.revises.marks);
    const body = { id: newId(), comparison: pair.id, outcome, replaces, comment, edit, criteria, reasons, safety, marks };
    if (strength) body.strength = strength;
    if (milliseconds !== null) body.milliseconds = milliseconds;
    if (guidelines) body.guidelines = guidelines;
    const what = judgmentInWords(body);
    this.restored.add(body.id);
    this.outbox.add("/label/api/judgments", body, { what: t("{judgment} (restored)", { judgment: what }), prompt: snippet(pair) });
    showTrace(t("Restored"));
    announce(t("Undone. The earlier judgment counts again: {judgment}.", { judgment: what }));
  }

  // `undone` is the act in short, if this page knows it.
  comeBack(pair, draft, undone) {
    this.live.stop(); // the replies to what is taken back
    if (pair.live) this.live.enter();
    else this.live.leave();
    if (pair.revises) pair.revises.draft = draft;
    else this.drafts.keep(pair, draft);
    this.buffer.putBack(pair);
    showTrace(undone && !NARROW.matches ? t("Undone: {act}", { act: undone }) : t("Undone"));
    announce(t("Undone. The pair is back."));
  }

  // The server's answer may be late: if the annotator is writing by then, keep the pair on screen.
  cameBack({ pair, judgment }) {
    const writing = $("dialog[open]") || document.activeElement?.closest?.(".desk textarea");
    const draft = judgment ? { ...partsOf(judgment), edits: judgment.edit ? { [judgment.outcome]: judgment.edit } : {} } : EMPTY;
    if (!writing) return this.comeBack(pair, draft);
    this.drafts.keep(pair, draft);
    this.buffer.putNext(pair);
    showTrace(t("Undone"));
    announce(t("Undone. The pair comes next."));
  }

  // Panels

  toggleDetails(open) {
    const panel = $(".details");
    panel.hidden = open === undefined ? !panel.hidden : !open;
    $("[data-do=details]").setAttribute("aria-expanded", String(!panel.hidden));
    remember("details", String(!panel.hidden));
  }

  // What a key changed.  A button with the focus says its own state.
  report(what, sentence) {
    if (document.activeElement?.dataset.do !== what) announce(sentence);
  }

  // `what` is plain or differences.
  toggleTexts(what) {
    this.texts[what] = !this.texts[what];
    $(`[data-do=${what}]`).setAttribute("aria-pressed", String(this.texts[what]));
    if (this.shown) this.showTexts();
    if (what === "differences") announce($(".differing").textContent || t("Differences are not marked."));
  }

  toggleGuidelines() {
    const panel = $(".guidelines");
    const left = panel.contains(document.activeElement);
    panel.hidden = !panel.hidden;
    if (left) $("nav [data-do=guidelines]").focus();
    for (const button of $$("[data-do=guidelines][aria-expanded]")) {
      button.setAttribute("aria-expanded", String(!panel.hidden));
    }
    $(".fresh").hidden = true;
    if (panel.hidden) return;
    if (this.covered) panel.firstElementChild.focus();
    if (panel.dataset.version) remember(this.readGuidelines, panel.dataset.version);
    else this.loadGuidelines();
  }

  // On a narrow screen the guidelines cover the pair.
  get covered() {
    return !$(".guidelines").hidden && matchMedia("(max-width: 800px)").matches;
  }

  toggleShortcuts() {
    keys.off = !keys.off;
    remember("keys", keys.off ? "off" : "on");
    keys.show();
  }

  // `part` is one of PARTS.
  goTo(part) {
    this.toggleDetails(true);
    $(`.details .${part} :is(textarea, button)`).focus();
  }

  openDrawer() {
    closeMenus();
    this.drawer.open();
  }

  async showFigures() {
    closeMenus();
    const dialog = $(".figures");
    const status = dialog.querySelector("[role=status]");
    dialog.querySelector("dl").replaceChildren();
    status.textContent = t("Loading …");
    dialog.showModal();
    let figures = null;
    try {
      const { status, data } = await request("GET", byOwnDay("/label/api/figures"), null, this.person.id);
      if (status === 200) figures = data;
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
    }
    status.textContent = "";
    fillFigures(figures);
  }

  // Without a connection, a page that has no guidelines yet shows those of this browser's copy.
  async loadGuidelines() {
    try {
      const { status, data } = await request("GET", `/label/api/guidelines?language=${language}`, null, this.person.id);
      if (status !== 200) return;
      this.copy.keepGuidelines(data);
      this.showGuidelines(data);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      const kept = (await this.copy.read())?.guidelines;
      if (kept && !$(".guidelines").dataset.version) this.showGuidelines(kept);
    }
  }

  showGuidelines(data) {
    const panel = $(".guidelines");
    if (data.version === panel.dataset.version) return;
    panel.querySelector(".text").innerHTML = data.html;
    outline(panel.querySelector(".text"), 2);
    typesetEach(panel.querySelector(".text"));
    panel.dataset.version = data.version;
    if (!panel.hidden) return remember(this.readGuidelines, data.version);
    const read = recall(this.readGuidelines);
    $(".fresh").hidden = read === data.version;
    // The first time, they open automatically if the window is wide enough.
    if (read === null && window.innerWidth > 1300) this.toggleGuidelines();
  }

  get readGuidelines() {
    return `guidelines.${this.person.id}`;
  }

  // Wiring

  wire() {
    const doing = {
      live: () => this.live.toggle(),
      judgments: () => this.openDrawer(),
      back: () => this.leaveRevision(),
      undo: () => this.undo(),
      skip: () => this.skip(),
      shortcuts: () => this.toggleShortcuts(),
      flag: () => this.flag(),
      edit: () => this.edit(),
      mark: () => this.marks.start(),
      details: () => {
        this.toggleDetails();
        this.report("details", $(".details").hidden ? t("The details are closed.") : t("The details are open."));
      },
      plain: () => {
        this.toggleTexts("plain");
        this.report("plain", this.texts.plain ? t("The texts are shown without formatting.") : t("The texts are shown with formatting."));
      },
      differences: () => this.toggleTexts("differences"),
      guidelines: () => {
        this.toggleGuidelines();
        this.report("guidelines", $(".guidelines").hidden ? t("The guidelines are closed.") : t("The guidelines are open."));
      },
      figures: () => this.showFigures(),
      changes: () => {
        closeMenus();
        this.changes.open();
      },
      help: () => $(".help").showModal(),
      theme: () => setTheme($(".desk").dataset.theme === "dark" ? "light" : "dark"),
    };
    for (const button of $$("[data-do]").filter(({ dataset }) => dataset.do in doing)) {
      button.onclick = (event) => {
        if (button.dataset.do === "skip" && this.slipped(event)) return;
        if (button.closest(".more")) closeMenus();
        doing[button.dataset.do]();
      };
    }
    $(".choices").onclick = (event) => {
      const button = event.target.closest("[data-outcome]");
      if (!button || this.slipped(event)) return;
      // A clicked button keeps the focus: the next key would show its focus ring, as if chosen.
      if (event.detail) button.blur();
      this.judge(button.dataset.outcome, Number(button.dataset.by) || undefined);
    };
    this.wireKeys(doing);
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("pointermove", () => $(".desk").classList.add("pointing"));
    document.addEventListener("pointerdown", (event) => closeMenus(event.target.closest(MENUS)));
    window.addEventListener("beforeunload", (event) => {
      if (this.outbox.hasVolatileActs) event.preventDefault();
    });
    window.addEventListener("pagehide", () => this.buffer.release());
    window.addEventListener("pageshow", ({ persisted }) => persisted && this.buffer.fetchOnce(1));
    window.addEventListener("online", () => this.wake());
    window.addEventListener("focus", () => this.wake());
    // The focus must not go to what the guidelines cover.
    element.addEventListener("focusin", ({ target }) => {
      if (this.covered && !target.closest(".guidelines, dialog")) this.toggleGuidelines();
    });
    this.toggleDetails(recall("details") === "true");
  }

  wireKeys({ live, undo, skip, flag, edit, mark, details, plain, differences, judgments, guidelines, help }) {
    for (const side of ["a", "b"]) {
      for (const [by, word] of Object.entries(STRENGTHS)) {
        keys.bind({ [`${side}-${word}`]: () => this.judge(side, Number(by)) });
      }
    }
    keys.bind({
      same: () => this.judge("tie"),
      a: () => this.judge("a"),
      b: () => this.judge("b"),
      tie: () => this.judge("tie"),
      "both-bad": () => this.judge("both_bad"),
      ...Object.fromEntries(Object.entries(STRENGTHS).map(([by, word]) => [word, () => this.pressStrength(Number(by))])),
      ...Object.fromEntries(PARTS.map((part) => [part, () => this.goTo(part)])),
      jump: jumpToResponses,
      switch: () => sides.toggle(),
      ...{ live, undo, skip, flag, edit, mark, details, plain, differences, judgments, guidelines, help },
    });
    const own = `shortcuts.${this.person.id}`;
    keys.restore(recall(own), (text) => remember(own, text));
    keys.off = recall("keys") === "off"; // speech input can trigger single-letter shortcuts
    keys.wire($(".help"));
  }

  // Double clicks are slower than repeated keys.
  slipped(event) {
    return event.detail >= 2 || this.unread;
  }

  press(event) {
    if (event.key === "Escape") return this.escape(event);
    // Holding Enter would repeatedly press the focused button.
    if (event.repeat && event.key === "Enter" && event.target.closest("button")) event.preventDefault();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return this.send(event);
    if (keys.off || event.repeat || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const action = keys.find(event);
    if (!action || !(this.shown || action.anywhere)) return;
    event.preventDefault();
    $(".desk").classList.remove("pointing"); // a resting pointer must not highlight a button
    // An answer to a pair that is unread or covered is a slip.
    if (!action.answers || !(this.unread || this.covered)) action.run();
  }

  // Ctrl+Enter sends what is being written.
  send(event) {
    const [editor, writing] = ["dialog.editor", "textarea"].map((place) => event.target.closest(place));
    if (!(editor || writing) || event.repeat) return;
    event.preventDefault();
    if (editor) editor.querySelector("form").requestSubmit();
    else if (writing.form) writing.form.requestSubmit(writing.form.querySelector("button.strong"));
    else this.sendComment();
  }

  // A comment belongs to a judgment: without a choice there is nothing to send.  `unsent` is the
  // choice that lacked a required part.
  sendComment() {
    const earlier = this.shown?.revises;
    if (earlier) return this.judge(earlier.outcome, $(".choice.earlier")?.dataset.by && earlier.strength);
    if (this.unsent) return this.judge(this.unsent.outcome);
    $(".comment textarea").blur();
    this.tell(this.form.scale === "two-step" ? t("Choose A or B first.") : t("Choose a step of the scale first."));
  }

  // What the page did not do, on the screen and for screen readers.
  tell(sentence) {
    $(".told").textContent = sentence;
    if (sentence) announce(sentence);
  }

  escape(event) {
    if (event.target.closest("textarea")) event.target.blur();
    else if ($("dialog[open]")) return; // the dialog closes by itself
    else if ($(`${MENUS}[open]`)) closeMenus();
    else if (this.marks.end()) return;
    else if (this.shown?.revises && !this.covered) this.leaveRevision();
    else if (!$(".guidelines").hidden) this.toggleGuidelines();
  }

  wake() {
    this.outbox.send();
    this.buffer.fill();
  }
}

// What unsent input is kept under.  A revision's is apart from that of a pair that comes back.
const draftOf = (pair) => (pair.revises ? { id: `revision.${pair.revises.id}` } : pair);
const flagOf = (pair) => ({ id: `flag.${pair.id}` });
const partsOf = ({ strength, criteria, reasons, safety, comment, marks }) => ({ strength, criteria, reasons, safety, comment, marks });

// A menu that had the focus gives it to its button.
function closeMenus(except) {
  for (const menu of $$(`${MENUS}[open]`)) {
    if (menu === except) continue;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}
