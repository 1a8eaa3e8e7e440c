// The keyboard shortcuts: one table, from which the keys, their hints on buttons, `aria-keyshortcuts`
// and the list in Help are made.  Each annotator can change their keys in Help, for one browser.

// `scale`: the action exists only with this form of judging.
// `part`: the action exists only if the form has this part.
// `answers`: the action is about the pair on the screen, so it waits until the pair can be read.
// `anywhere`: the action needs no pair on the screen.
// `also`: a second key, which cannot be changed.
const ACTIONS = [
  { id: "a", label: t("A is better"), key: "1", scale: "two-step", answers: true },
  { id: "b", label: t("B is better"), key: "2", scale: "two-step", answers: true },
  { id: "a-much", label: t("A is much better"), key: "1", scale: "one-press", answers: true },
  { id: "a-clearly", label: t("A is clearly better"), key: "2", scale: "one-press", answers: true },
  { id: "a-slightly", label: t("A is slightly better"), key: "3", scale: "one-press", answers: true },
  { id: "same", label: t("Same: both are equally good"), key: "4", also: "0", scale: "one-press", answers: true },
  { id: "b-slightly", label: t("B is slightly better"), key: "5", scale: "one-press", answers: true },
  { id: "b-clearly", label: t("B is clearly better"), key: "6", scale: "one-press", answers: true },
  { id: "b-much", label: t("B is much better"), key: "7", scale: "one-press", answers: true },
  { id: "both-bad", label: t("Both bad: neither is acceptable"), key: "9", answers: true },
  { id: "tie", label: t("Tie: both are equally good"), key: "0", scale: "two-step", answers: true },
  { id: "slightly", label: t("Slightly better (press before A or B)"), key: "u", scale: "two-step" },
  { id: "clearly", label: t("Clearly better (press before A or B)"), key: "i", scale: "two-step" },
  { id: "much", label: t("Much better (press before A or B)"), key: "o", scale: "two-step" },
  { id: "edit", label: t("Edit the better response"), key: "e", answers: true },
  { id: "mark", label: t("Mark a passage of a response"), key: "h", part: "marks" },
  { id: "skip", label: t("Skip a pair that you cannot judge"), key: "s", answers: true },
  { id: "flag", label: t("Flag a pair that should not be here"), key: "f", answers: true },
  { id: "undo", label: t("Undo the last action"), key: "z", anywhere: true },
  { id: "details", label: t("Show the details"), key: "d", part: "details" },
  { id: "criteria", label: t("Go to the criteria (arrows and Space choose)"), key: "k", part: "criteria" },
  { id: "safety", label: t("Go to the safety labels (arrows and Space choose)"), key: "y", part: "safety" },
  { id: "reasons", label: t("Go to the reason tags (arrows and Space choose)"), key: "t", part: "reasons" },
  { id: "comment", label: t("Write a comment"), key: "c", part: "comment" },
  { id: "plain", label: t("Show the unformatted text"), key: "r" },
  { id: "differences", label: t("Mark the words that only one response has"), key: "w" },
  { id: "jump", label: t("Jump to the responses, and back"), key: "j" },
  { id: "switch", label: t("Switch between A and B on a narrow screen"), key: "x" },
  { id: "live", label: t("Live conversation, and back to the queue"), key: "l", part: "live", anywhere: true },
  { id: "judgments", label: t("Show your earlier judgments"), key: "m", anywhere: true },
  { id: "guidelines", label: t("Show the guidelines"), key: "g", anywhere: true },
  { id: "help", label: t("Show this list"), key: "?", anywhere: true },
];
const FIXED = [
  { caps: ["Ctrl", "Enter"], label: t("Send the message, edit or flag, or the judgment with its comment") },
  { caps: ["Esc"], label: t("Leave the comment or the marking of passages; close a panel; keep an earlier judgment") },
];
const ARROWS = { arrowleft: "←", arrowright: "→", arrowup: "↑", arrowdown: "↓" };

// The character that the pressed key has on a US keyboard, for layouts whose own character is not a
// shortcut: digits that need Shift (AZERTY) and other scripts (Cyrillic, Arabic).  A Latin letter
// never counts as another letter, because its key cap says something else.  Nor does the Hungarian ö
// count as 0, which has a key of its own.
function onLatinKeyboard({ key, code, shiftKey }) {
  if (key === "\u061f") return "?"; // the Arabic question mark
  const [, digit, letter] = /^(?:Digit(\d)|Key([A-Z]))$/.exec(code) ?? [];
  if (digit) return shiftKey || key.toLowerCase() === "ö" ? undefined : digit;
  return letter && /^\p{L}$/u.test(key) && !/^\p{Script=Latin}$/u.test(key) ? letter.toLowerCase() : undefined;
}

class Keys {
  constructor(actions) {
    this.all = [...actions];
    this.scale = "two-step";
    this.parts = [];
    this.own = {}; // keys that the annotator has chosen, by action
    this.off = false;
    this.waiting = null; // the action whose next key is being chosen
    this.store = () => {};
    this.settle();
  }

  // For other scripts: a further action {id, label, key, run}, which Help lists like the others.
  add(action) {
    this.all.push(action);
    this.settle();
    if (this.dialog) this.show();
  }

  // Actions of the other form have no keys.
  use(scale, parts) {
    this.scale = scale;
    this.parts = parts;
    this.settle();
    this.show();
  }

  get actions() {
    const has = ({ scale, part }) => (!scale || scale === this.scale) && (!part || this.parts.includes(part));
    return this.all.filter(has);
  }

  // What the actions of the table do, by id.
  bind(runs) {
    for (const [id, run] of Object.entries(runs)) this.all.find((action) => action.id === id).run = run;
  }

  // The annotator's own keys, and how to store them.
  restore(text, store) {
    this.store = store;
    try {
      const own = Object.entries(JSON.parse(text) ?? {});
      this.own = Object.fromEntries(own.filter(([, key]) => typeof key === "string"));
    } catch {
      // Unreadable: the defaults.
    }
    this.settle();
  }

  // A key must not do two things: where one's own key is taken since, the action has its default.
  settle() {
    const own = { ...this.own };
    for (;;) {
      const actions = this.actions;
      this.keyOf = new Map(actions.map(({ id, key }) => [id, own[id] ?? key]));
      const clashing = actions.filter((action) => own[action.id] && this.holder(this.keyOf.get(action.id), action));
      if (!clashing.length) return;
      for (const { id } of clashing) delete own[id];
    }
  }

  // The action that has a key, other than `except`.
  holder(key, except) {
    return key && this.actions.find((action) => action !== except && [this.keyOf.get(action.id), action.also].includes(key));
  }

  // The action that a key event asks for.
  find(event) {
    return this.holder(event.key?.toLowerCase()) || this.holder(onLatinKeyboard(event));
  }

  cap(id) {
    const key = this.keyOf.get(id);
    return ARROWS[key] ?? key.toUpperCase();
  }

  // Hints and list

  // `[data-key]` names the action of a button; its `kbd`, if it has one, shows the key.
  show() {
    for (const node of $$("[data-key]")) {
      if (!this.keyOf.has(node.dataset.key)) continue; // of the other scale
      if (this.off) node.removeAttribute("aria-keyshortcuts");
      else node.setAttribute("aria-keyshortcuts", this.keyOf.get(node.dataset.key));
      const hint = node.querySelector("kbd");
      if (hint) hint.textContent = this.cap(node.dataset.key);
    }
    $(".desk").classList.toggle("keys-off", this.off);
    const rows = this.actions.map((action) => this.row(action.label, this.changer(action)));
    const fixed = FIXED.map(({ caps, label }) => this.row(label, ...caps.map((cap) => make("kbd", "", cap))));
    this.dialog.querySelector("dl").replaceChildren(...rows, ...fixed);
    this.dialog.querySelector("[data-do=shortcuts]").textContent = this.off ? t("Turn on shortcuts") : t("Turn off shortcuts");
    this.dialog.querySelector("[data-do=defaults]").hidden = !Object.keys(this.own).length;
  }

  row(label, ...caps) {
    const row = make("div");
    const keys = make("dd");
    keys.append(...caps);
    row.append(make("dt", "", label), keys);
    return row;
  }

  changer(action) {
    const button = make("button", "changer");
    button.type = "button";
    button.dataset.action = action.id;
    button.append(make("kbd", "", this.cap(action.id)));
    if (action.also) button.append(" ", make("kbd", "", action.also));
    button.setAttribute("aria-label", t("{key}: change the key for “{action}”", { key: button.textContent, action: action.label }));
    button.onclick = () => this.ask(action, button);
    button.onblur = () => this.waiting === action && this.answer("");
    return button;
  }

  // Changing a key

  wire(dialog) {
    this.dialog = dialog;
    dialog.addEventListener("keydown", (event) => this.waiting && this.hear(event), true);
    dialog.onclose = () => this.answer("");
    dialog.querySelector("[data-do=defaults]").onclick = () => this.restoreDefaults();
    this.show();
  }

  ask(action, button) {
    this.waiting = action;
    button.classList.add("asked");
    button.querySelector("kbd").textContent = "…";
    this.say(t("Press the new key for “{action}”. Esc keeps the old one.", { action: action.label }));
  }

  hear(event) {
    if (["Shift", "CapsLock"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Tab") return; // moves on; the blur ends the question
    event.preventDefault(); // Esc would close the list
    event.stopPropagation();
    if (event.key === "Escape") return this.answer(t("The key is unchanged."));
    const key = onLatinKeyboard(event) ?? event.key.toLowerCase();
    const holder = this.holder(key, this.waiting);
    if ([...key].length !== 1 || key === " ") this.say(t("This key cannot be a shortcut. Press a letter, a digit or a symbol."));
    else if (holder) this.say(t("“{key}” is the key for “{action}”. Press another key.", { key: key.toUpperCase(), action: holder.label }));
    else this.choose(this.waiting, key);
  }

  choose(action, key) {
    if (key === action.key) delete this.own[action.id];
    else this.own[action.id] = key;
    this.store(JSON.stringify(this.own));
    this.settle();
    this.answer(t("The key for “{action}” is now {key}.", { action: action.label, key: this.cap(action.id) }));
  }

  restoreDefaults() {
    this.own = {};
    this.store(JSON.stringify(this.own));
    this.settle();
    this.answer(t("All keys are back to their defaults."));
  }

  // The list is made anew, so the focus returns to the button of the same action.
  answer(sentence) {
    const action = this.waiting;
    this.waiting = null;
    this.say(sentence);
    this.show();
    if (action && sentence) this.dialog.querySelector(`[data-action="${action.id}"]`).focus();
    else if (sentence) this.dialog.querySelector("[data-action]").focus();
  }

  say(sentence) {
    this.dialog.querySelector("[role=status]").textContent = sentence;
  }
}

const keys = new Keys(ACTIONS);
