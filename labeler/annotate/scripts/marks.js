// Marks: passages of a response that the annotator selects, and marks as good, bad or with a reason tag.
//
// A mark has its place in the response as it is written (`start`, `end`) or in its formatted text
// (`rendered_start`, `rendered_end`), or in both.  Places count Unicode characters, as the server does;
// inside this script they count UTF-16 units.

const MAX_MARKS = 20; // of one response
const MAX_QUOTE = 1000; // characters of a passage
const MAX_QUOTES = 5000; // characters of all passages of a judgment
const EXCERPT = 100; // characters of a passage in the list
const VERDICTS = { good: t("Good"), bad: t("Bad") };
const KINDS = ["rendered_", ""]; // of places
// Only editable text has a caret that screen readers follow; all changes are refused.
const CARET = { contenteditable: "true", role: "textbox", "aria-multiline": "true", "aria-readonly": "true", inputmode: "none", spellcheck: "false" };

const reasonInWords = (reason) => VERDICTS[reason] ?? reason;
const reasonClass = (reason) => (reason in VERDICTS ? reason : "tag");
const toPoints = (text, units) => [...text.slice(0, units)].length;
const toUnits = (text, points) => [...text].slice(0, points).join("").length;

function parsed(html) {
  const template = make("template");
  template.innerHTML = html;
  return template.content;
}

// A response's texts by kind of place.
const textsOf = ({ text, html }) => ({ rendered_: parsed(html).textContent, "": text });

// [start, end] of a passage in one of the texts, or null: where the mark says, or else where the only
// such passage is.
function placeOf({ quote, ...mark }, kind, text) {
  const [start, end] = [mark[`${kind}start`], mark[`${kind}end`]];
  const place = start == null ? null : [toUnits(text, start), toUnits(text, end)];
  const both = KINDS.every((each) => mark[`${each}start`] != null); // then the quote may have markup in one of them
  if (place && (both || text.slice(...place) === quote)) return place;
  const first = text.indexOf(quote);
  return first >= 0 && first === text.lastIndexOf(quote) ? [first, first + quote.length] : null;
}

// The marks of a pair by side, as the server takes them: with one place, at which the quote stands.
function marksToSend(pair, marks) {
  const sides = Object.entries(marks).filter(([, given]) => given.length);
  return Object.fromEntries(sides.map(([side, given]) => [side, given.map((mark) => markToSend(mark, textsOf(pair[side])))]));
}

function markToSend(mark, texts) {
  const { reason, quote } = mark;
  for (const kind of KINDS) {
    const text = texts[kind];
    const [start, end] = placeOf(mark, kind, text) ?? [0, 0];
    if (text.slice(start, end) !== quote) continue;
    return { reason, quote, [`${kind}start`]: toPoints(text, start), [`${kind}end`]: toPoints(text, end) };
  }
  const kind = KINDS.find((each) => mark[`${each}start`] != null);
  return { reason, quote, [`${kind}start`]: mark[`${kind}start`], [`${kind}end`]: mark[`${kind}end`] };
}

// A response on the screen: its text and the nodes that show it.
class MarkedText {
  constructor(side, shown, plain) {
    this.side = side;
    this.root = $(`.response.${side} > .text`);
    this.shown = shown;
    this.kind = plain ? "" : "rendered_";
  }

  get text() {
    return (this.known ??= textsOf(this.shown))[this.kind];
  }

  // The nodes in order: {node, start, length}.  A typeset formula is one of them.
  get pieces() {
    if (this.found) return this.found;
    const formulas = [...parsed(this.shown.html).querySelectorAll(".math")].map(({ textContent }) => textContent);
    const pieces = [];
    let at = 0;
    const add = (node, length) => {
      pieces.push({ node, start: at, length });
      at += length;
    };
    const visit = (node) => {
      if (node.nodeType === Node.TEXT_NODE) add(node, node.data.length);
      else if (node.matches(".math")) add(node, formulas.shift().length);
      else if (!node.matches(".code-bar, .nothing")) node.childNodes.forEach(visit);
    };
    visit(this.root);
    return (this.found = pieces);
  }

  // [start, end] of what a selection covers, without white space around it; null if that is nothing.
  covered(range) {
    if (!range.intersectsNode(this.root)) return null;
    let [start, end] = [null, null];
    for (const { node, start: at, length } of this.pieces) {
      if (!range.intersectsNode(node)) continue;
      const isText = node.nodeType === Node.TEXT_NODE;
      const from = isText && node === range.startContainer ? range.startOffset : 0;
      const to = isText && node === range.endContainer ? range.endOffset : length;
      if (from >= to) continue;
      start ??= at + from;
      end = at + to;
    }
    const part = this.text.slice(start ?? 0, end ?? 0);
    if (!part.trim()) return null;
    return [start + part.length - part.trimStart().length, end - part.length + part.trimEnd().length];
  }

  // A range for each node of a passage: one range would include the bars of code blocks.
  ranges([start, end]) {
    const parts = this.pieces.filter(({ start: at, length }) => at < end && at + length > start);
    return parts.map(({ node, start: at, length }) => {
      const range = document.createRange();
      if (node.nodeType !== Node.TEXT_NODE) range.selectNode(node);
      else {
        range.setStart(node, Math.max(0, start - at));
        range.setEnd(node, Math.min(length, end - at));
      }
      return range;
    });
  }
}

class Marks {
  // `changed(marks)` keeps the marks by side; `redraw()` shows the pair again; `tell(sentence)` says what
  // was not done.
  constructor({ changed, redraw, tell }) {
    Object.assign(this, { changed, redraw, tell });
    this.toolbar = $(".marking");
    this.on = false;
    this.texts = [];
    this.marks = {};
    this.selected = null; // {text, start, end}
    this.held = false; // whether a pointer is down, so that nothing moves under it
    this.wire();
  }

  // The reasons that the project's form offers.
  use({ marks, reasons }) {
    this.on = marks;
    const all = [...new Set([...Object.keys(VERDICTS), ...reasons])];
    const buttons = all.map((reason) => {
      const button = make("button", reasonClass(reason), reasonInWords(reason));
      button.type = "button";
      button.dataset.mark = reason;
      return button;
    });
    this.toolbar.replaceChildren(...buttons);
    $("[data-do=mark]").hidden = !marks;
    this.follow();
  }

  // Called whenever the texts of a pair were written on the page.
  show(pair, marks, plain) {
    this.leave();
    this.selected = null; // the toolbar may have the focus
    this.toolbar.hidden = true;
    this.texts = ["a", "b"].map((side) => new MarkedText(side, pair[side], plain));
    this.marks = structuredClone(marks);
    this.draw();
    this.follow();
  }

  // Selecting

  wire() {
    const responses = $(".responses");
    document.addEventListener("selectionchange", () => this.follow());
    for (const [target, event] of [[document, "scroll"], [window, "resize"]]) {
      target.addEventListener(event, () => this.toolbar.hidden || this.place(), { passive: true });
    }
    document.addEventListener("pointerdown", ({ target }) => {
      this.held = !this.toolbar.contains(target);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      document.addEventListener(end, () => {
        this.held = false;
        this.follow();
      });
    }
    // A press on the toolbar must not clear the selection that it is about.
    this.toolbar.onmousedown = (event) => event.preventDefault();
    this.toolbar.onclick = ({ target }) => target.dataset.mark && this.add(target.dataset.mark);
    this.toolbar.onkeydown = (event) => this.moveInToolbar(event);
    responses.addEventListener("keydown", (event) => this.press(event));
    responses.addEventListener("beforeinput", (event) => event.preventDefault());
    // Input methods write without asking.
    responses.addEventListener("input", () => this.redraw());
    responses.addEventListener("focusout", ({ relatedTarget: to }) => {
      if (to && !this.toolbar.contains(to) && !responses.contains(to)) this.leave();
    });
  }

  // Show the toolbar while a passage of one response is selected.
  follow() {
    if (this.held || this.toolbar.contains(document.activeElement)) return;
    this.selected = this.on ? this.read() : null;
    this.toolbar.hidden = !this.selected;
    if (this.selected) this.place();
  }

  read() {
    const selection = document.getSelection();
    if (!selection.rangeCount || selection.isCollapsed || $(".pair").hidden || $("dialog[open]")) return null;
    const range = selection.getRangeAt(0);
    const found = this.texts.flatMap((text) => {
      const place = text.covered(range);
      return place ? [{ text, start: place[0], end: place[1] }] : [];
    });
    return found.length === 1 ? found[0] : null;
  }

  // Above the selection, or below it if it was made backwards: the next line that it may cover stays
  // free.  On a narrow screen, where the system has its own menu at the selection, the toolbar is above
  // the choices.
  place() {
    const { style, offsetHeight: height, offsetWidth: width } = this.toolbar;
    const choices = Math.min($(".verdict").getBoundingClientRect().top, window.innerHeight);
    const bottom = (choices > height ? choices : window.innerHeight) - height - 8;
    style.left = "";
    style.top = `${bottom}px`;
    if (NARROW.matches) return;
    const { text, start, end } = this.selected;
    const boxes = text.ranges([start, end]).flatMap((range) => [...range.getClientRects()]);
    if (!boxes.length) return;
    const [first, last] = [boxes[0], boxes.at(-1)];
    const line = parseFloat(getComputedStyle(text.root).lineHeight);
    const backwards = document.getSelection().direction === "backward";
    const [above, below] = [first.top - height - 8 - (backwards ? line : 0), last.bottom + 8 + (backwards ? 0 : line)];
    const tops = (backwards ? [below, above] : [above, below]).filter((top) => top >= 8 && top <= bottom);
    style.top = `${tops[0] ?? bottom}px`;
    style.left = `${Math.max(8, Math.min(last.left, text.root.getBoundingClientRect().right - width))}px`;
  }

  // The key: to the toolbar, if a passage is selected; otherwise the responses get a caret.
  start() {
    this.follow();
    if (this.selected) return this.toolbar.firstElementChild.focus();
    if (matchMedia("(pointer: coarse)").matches) return this.tell(t("Select text in a response, then choose a reason."));
    for (const { root, side } of this.texts) {
      const label = t("Text of response {side}", { side: side.toUpperCase() });
      for (const [name, value] of Object.entries({ ...CARET, "aria-label": label })) root.setAttribute(name, value);
      for (const bar of root.querySelectorAll(".code-bar")) bar.contentEditable = "false";
    }
    const { root, pieces } = this.texts.find((text) => text.root.checkVisibility());
    root.focus();
    if (pieces.length) document.getSelection().setPosition(pieces[0].node, 0);
    $(".caret-hint").hidden = false;
    this.tell("");
    announce($(".caret-hint").textContent);
  }

  get editing() {
    return Boolean($(".response > .text[contenteditable]"));
  }

  // No caret any more.
  leave() {
    $(".caret-hint").hidden = true;
    for (const root of $$(".response > .text[contenteditable]")) {
      for (const name of [...Object.keys(CARET), "aria-label"]) root.removeAttribute(name);
    }
  }

  // Keys in a response with a caret.
  press(event) {
    const isText = event.target.isContentEditable && !event.isComposing;
    if (!this.editing || !(event.key === "Escape" || (event.key === "Enter" && isText))) return;
    event.preventDefault();
    event.stopPropagation();
    this.follow(); // the event about the selection may be on its way
    if (event.key === "Escape") this.end();
    else if (this.selected) this.toolbar.firstElementChild.focus();
    else this.tell(t("First select text with Shift and the arrow keys."));
  }

  moveInToolbar(event) {
    const right = $(".desk").dir === "rtl" ? -1 : 1;
    const step = { ArrowLeft: -right, ArrowUp: -1, ArrowRight: right, ArrowDown: 1 }[event.key];
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...this.toolbar.children];
    if (step) buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length].focus();
    else this.goBack();
  }

  // From the toolbar to the text, where the caret goes on.
  goBack() {
    const { root } = this.selected.text;
    if (this.editing) root.focus({ preventScroll: true });
    else $(".responses").focus({ preventScroll: true });
  }

  // Esc: returns whether there was a selection or a caret to end.
  end() {
    const active = Boolean(this.selected) || this.editing;
    if (!active) return false;
    if (this.editing) $(".responses").focus({ preventScroll: true });
    this.leave();
    document.getSelection().removeAllRanges();
    this.tell("");
    return true;
  }

  // Marks

  add(reason) {
    const { text, start, end } = this.selected;
    const { side, kind } = text;
    const quote = text.text.slice(start, end);
    const mark = { reason, quote, [`${kind}start`]: toPoints(text.text, start), [`${kind}end`]: toPoints(text.text, end) };
    const problem = this.problemWith(reason, quote);
    if (problem) return this.tell(problem);
    this.marks[side] = [...(this.marks[side] ?? []), mark];
    const selection = document.getSelection();
    if (this.toolbar.contains(document.activeElement)) this.goBack();
    if (this.editing) selection.collapseToEnd();
    else selection.removeAllRanges();
    this.keep();
    announce(t("Marked: {reason}.", { reason: reasonInWords(reason) }));
  }

  problemWith(reason, quote) {
    const { text, start, end } = this.selected;
    const given = this.marks[text.side] ?? [];
    const places = given.filter((other) => other.reason === reason).map((other) => placeOf(other, text.kind, text.text));
    const quotes = [quote, ...Object.values(this.marks).flat().map((other) => other.quote)];
    const [length, ...others] = quotes.map((each) => toPoints(each, each.length));
    if (places.some((place) => place?.[0] === start && place[1] === end)) return t("This passage is already marked with this reason.");
    if (given.length >= MAX_MARKS) return t("A response can have {count} marks at most.", { count: MAX_MARKS });
    if (length > MAX_QUOTE) return t("A marked passage can have {count} characters at most.", { count: MAX_QUOTE });
    if (others.reduce((sum, each) => sum + each, length) > MAX_QUOTES) {
      return t("All marked passages together can have {count} characters at most.", { count: MAX_QUOTES });
    }
    return null;
  }

  remove(side, mark) {
    const before = this.marks[side].indexOf(mark);
    this.marks[side] = this.marks[side].filter((other) => other !== mark);
    if (!this.marks[side].length) delete this.marks[side];
    this.keep();
    announce(t("The mark is removed."));
    const rows = $$(`.response.${side} .marks .remove`);
    (rows[before] ?? rows.at(-1) ?? $(".responses")).focus({ preventScroll: true });
  }

  keep() {
    this.draw();
    this.changed(this.marks);
  }

  // Showing

  draw() {
    const groups = { good: [], bad: [], tag: [] };
    for (const node of $$(".math.marked")) node.classList.remove("marked", ...Object.keys(groups));
    for (const text of this.texts) {
      const given = this.marks[text.side] ?? [];
      const rows = given.map((mark) => this.row(text, mark, groups));
      const list = $(`.response.${text.side} .marks`);
      list.replaceChildren(...rows);
      list.hidden = !rows.length;
    }
    for (const [name, ranges] of Object.entries(groups)) highlight(name, ranges);
    highlight("current", []);
  }

  row(text, mark, groups) {
    const place = placeOf(mark, text.kind, text.text);
    const ranges = place ? text.ranges(place) : [];
    const kind = reasonClass(mark.reason);
    groups[kind].push(...ranges);
    for (const { startContainer: from, startOffset } of ranges) {
      if (from.nodeType !== Node.TEXT_NODE) from.childNodes[startOffset].classList.add("marked", kind);
    }
    const row = make("li");
    const excerpt = mark.quote.replace(/\s+/g, " ");
    const quote = make("q", "", excerpt.length > EXCERPT ? `${excerpt.slice(0, EXCERPT)} …` : excerpt);
    quote.dir = "auto";
    const passage = make(place ? "button" : "span", "passage");
    passage.append(quote);
    if (place) passage.type = "button";
    else passage.append(" ", make("small", "", t("(not in this view)")));
    passage.onclick = place && (() => showPassage(text.side, ranges[0]));
    const remove = make("button", "remove", "✕");
    remove.type = "button";
    remove.setAttribute("aria-label", t("Remove the mark “{reason}”: {passage}", { reason: reasonInWords(mark.reason), passage: excerpt.slice(0, EXCERPT) }));
    remove.onclick = () => this.remove(text.side, mark);
    row.append(make("span", `reason ${kind}`, reasonInWords(mark.reason)), passage, remove);
    for (const event of ["mouseenter", "focusin"]) row.addEventListener(event, () => highlight("current", ranges));
    for (const event of ["mouseleave", "focusout"]) row.addEventListener(event, () => highlight("current", []));
    return row;
  }
}

// Browsers without this interface show the marks only in the list.
function highlight(name, ranges) {
  if (!CSS.highlights) return;
  const made = new Highlight(...ranges);
  made.priority = name === "current" ? 1 : 0;
  CSS.highlights.set(`kite-${name}`, made);
}

function showPassage(side, range) {
  sides.choose(side);
  const node = range.startContainer;
  (node.nodeType === Node.TEXT_NODE ? node.parentElement : node).scrollIntoView({ block: "center" });
}
