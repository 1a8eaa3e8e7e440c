// Shows state on the screen.  Only HTML from the server's renderer is set as HTML.

const $ = (selector) => element.querySelector(selector);
const $$ = (selector) => [...element.querySelectorAll(selector)];

const ROLES = { system: t("System"), user: t("User"), assistant: t("Assistant") };
const OUTCOMES = { a: t("A is better"), b: t("B is better"), tie: t("Tie"), both_bad: t("Both bad") };
const STRENGTHS = { 1: "slightly", 2: "clearly", 3: "much" };
const STRENGTH_TEXTS = { 1: t("slightly"), 2: t("clearly"), 3: t("much") };
const PREFERENCES = {
  1: { a: t("A is slightly better"), b: t("B is slightly better") },
  2: { a: t("A is clearly better"), b: t("B is clearly better") },
  3: { a: t("A is much better"), b: t("B is much better") },
};
const CRITERIA = { helpful: t("More helpful"), truthful: t("More truthful"), harmless: t("More harmless"), clear: t("Clearer") };
// Title and sentence while there is no pair to judge, by phase of the loop or problem.
const NEXT_ITERATION = [t("All caught up"), t("You have no pairs left to judge. New pairs will appear here after the next sampling.")];
const IDLE = {
  loading: [t("Loading"), t("The next pairs are being loaded.")],
  sampling: [t("New pairs are being sampled"), t("The model is responding to new prompts. The pairs will appear here automatically.")],
  labeling: [t("All caught up"), t("You have no pairs left to judge. New pairs will appear here automatically.")],
  reward: NEXT_ITERATION,
  policy: NEXT_ITERATION,
  evaluating: NEXT_ITERATION,
  done: NEXT_ITERATION,
  nothing: [t("Nothing to judge yet"), t("Pairs will appear here after the first sampling.")],
  "somebody-else": [t("Someone else has signed in"), t("Reload the page to continue with the account that is signed in now.")],
  elsewhere: [t("This page is open in another tab"), t("Your drafts and unsaved labels are kept.")],
  unreachable: [t("No connection"), t("Kitestring cannot be reached. This page keeps your labels and tries again.")],
};

const MATH_NOTICE = t(
  "The formulas of both responses are shown as LaTeX: one of them has a formula that cannot be typeset, or too many formulas.",
);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// `level` is that of the heading above the text; without it, the text is not in the page's outline.
function fillText(node, shown, plain, level) {
  if (!shown.text.trim()) node.replaceChildren(make("p", "nothing", t("(empty response)")));
  else if (plain) node.replaceChildren(make("pre", "plain", shown.text));
  else node.innerHTML = shown.html;
  if (level) outline(node, level);
}

// The headings of a text are part of what is judged.  In the page's outline they are below the heading
// above the text, without gaps.
function outline(node, level) {
  const ranks = []; // of the headings that the next one may be below
  for (const heading of node.querySelectorAll(".heading")) {
    const rank = Number(heading.className.match(/h([1-6])/)[1]);
    while (ranks.at(-1) >= rank) ranks.pop();
    ranks.push(rank);
    heading.setAttribute("role", "heading");
    heading.setAttribute("aria-level", String(Math.min(6, level + ranks.length)));
  }
}

function showPair(pair, { plain, differences }) {
  $(".pair").hidden = false; // heights are measured
  showConversation($(".prompt"), pair.prompt, plain);
  const [a, b] = [$(".response.a .text"), $(".response.b .text")];
  fillText(a, pair.a, plain, 2);
  fillText(b, pair.b, plain, 2);
  const notices = pair.notice.split("\n").map((line) => t(line));
  if (!typesetAll(a, b)) notices.push(MATH_NOTICE);
  const notice = [...new Set(notices)].join(" ").trim();
  $(".differing").textContent = differences ? markDifferences(a, b) : "";
  $(".differing").hidden = !differences;
  addCodeBars(a);
  addCodeBars(b);
  $(".notice").textContent = notice;
  $(".notice").hidden = !notice || plain; // the notice is about formatting
  sides.show();
}

// The card of the chosen response lights up for a moment, over the next pair.
function flash(outcome) {
  const card = $(`.response.${outcome}`);
  if (!card || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const color = getComputedStyle(card).getPropertyValue("--side");
  card.animate({ boxShadow: [`0 0 0 3px ${color}`, "0 0 0 3px transparent"] }, { duration: 350, easing: "ease-out" });
}

function judgmentInWords({ outcome, strength }) {
  if (!strength) return OUTCOMES[outcome];
  return PREFERENCES[strength][outcome];
}

function editedInWords(judgment, edited) {
  return edited ? t("{judgment}, edited", { judgment }) : judgment;
}

// Short enough for a phone's row of buttons, such as "A, clearly".
function judgmentInShort({ outcome, strength }) {
  const name = outcome.length === 1 ? outcome.toUpperCase() : OUTCOMES[outcome];
  return strength ? t("{judgment}, {strength}", { judgment: name, strength: STRENGTH_TEXTS[strength] }) : name;
}

// The latest act, beside the button that undoes it.  Screen readers hear it from the announcer.
function showTrace(what) {
  $(".trace").textContent = what;
}

function heldByOthers(count) {
  if (!count) return "";
  return ` ${tn(count, "Another annotator has {count} pair that you may receive later.", "Other annotators have {count} pairs that you may receive later.")}`;
}

function showIdle(reason, today, withOthers = 0) {
  const [title, sentence] = IDLE[reason] || IDLE.labeling;
  // While the page waits for pairs or a connection, labels may be unsent, so it shows no count.
  const known = !["unreachable", "loading", "somebody-else", "elsewhere"].includes(reason);
  const thanks = known && today > 0 ? ` ${t("You judged {count} today.", { count: today })}` : "";
  $(".empty h1").textContent = title;
  $(".empty p").textContent = sentence + (known ? heldByOthers(withOthers) : "") + thanks;
}

// `state` is loading, judging, idle or live, and `turn` whether a live turn is judged; returns whether
// the state was another one before.
function showState(state, turn = false) {
  const changed = $(".desk").dataset.state !== state;
  $(".desk").dataset.state = state;
  $(".pair").hidden = state !== "judging";
  $(".live").hidden = state !== "live";
  $(".live-head").hidden = state !== "live" && !turn;
  $(".pair > h1").hidden = turn; // the page has one heading of the first level
  $(".empty").hidden = state === "judging" || state === "live";
  return changed;
}

// What has the focus may have disappeared: keys and screen readers go on with what is there now.
function catchFocus() {
  const focused = document.activeElement;
  if (focused === document.body || focused.checkVisibility()) return;
  ($(".pair").hidden ? $(".empty h1") : $(".responses")).focus({ preventScroll: true });
}

// Without a pair, the bar has only Undo (see the styles), if there is anything to undo.
function showVerdict(shown) {
  $(".verdict").hidden = !shown;
}

function showPerson(person) {
  $("[data-person=name]").textContent = person.name;
  $("[data-person=initial]").textContent = [...person.name][0].toUpperCase();
  $("[data-person=password]").hidden = !person.password;
  $("[data-person=adjudicator]").hidden = person.role !== "adjudicator";
  $("[data-person=researcher]").hidden = person.role !== "researcher";
}

const ONE_DIGIT = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
const percent = (share) => (share === null ? "–" : percentage.format(share));

// The server reports no agreement below 5% or above 95%: see storage/labeling/own_figures.py.
function agreementInWords({ agreement, shared_pairs: pairs }) {
  if (agreement === null) return ["–", t("Shown the day after others have judged 20 of your pairs.")];
  const share = percent(agreement);
  const value = agreement >= 0.95 ? t("{share} or more", { share }) : agreement <= 0.05 ? t("{share} or less", { share }) : share;
  return [value, tn(pairs, "On {count} pair that others also judged, up to yesterday. Careful annotators disagree too.", "On {count} pairs that others also judged, up to yesterday. Careful annotators disagree too.")];
}

// Each figure has a name, a value and an explanation.  `figures` is null if the server did not answer.
function fillFigures(figures) {
  if (!figures) {
    const row = make("div");
    row.append(make("dt", "", t("The statistics could not be loaded.")), make("dd", "hint", t("Try again in a moment.")));
    return $(".figures dl").replaceChildren(row);
  }
  const { judgments, today, decided, median_seconds: seconds } = figures;
  const sides = decided ? tn(decided, "Of {count} preference. Sides are random, so about 50% is expected.", "Of {count} preferences. Sides are random, so about 50% is expected.") : "";
  const rows = [
    [t("Judged today"), today, t("{count} in total", { count: judgments })],
    [t("Median time per pair"), seconds === null ? "–" : t("{seconds} s", { seconds: seconds.toLocaleString(numbers, ONE_DIGIT) }), ""],
    [t("Ties"), percent(figures.tie_rate), ""],
    [t("Both bad"), percent(figures.both_bad_rate), ""],
    [t("Preferred the left response"), percent(figures.left_rate), sides],
    [t("Agreement with others"), ...agreementInWords(figures)],
  ];
  const nodes = rows.map(([name, value, hint]) => {
    const row = make("div");
    row.append(make("dt", "", name), make("dd", "", value));
    if (hint) row.append(make("dd", "hint", hint));
    return row;
  });
  $(".figures dl").replaceChildren(...nodes);
}

function setStatus(kind, sentence, link) {
  const node = $(".status");
  const text = node.querySelector("span");
  if (node.dataset.status === kind && text.textContent === sentence) return;
  node.dataset.status = kind;
  node.setAttribute("aria-live", kind === "saving" ? "off" : "polite"); // "Saved" follows
  node.title = sentence;
  if (!link) text.textContent = sentence;
  else {
    const anchor = make("a", "", sentence);
    anchor.href = link;
    text.replaceChildren(anchor);
  }
}

// Skips, flags and undos are not labels.
const areLabels = (acts) => acts.every(({ path }) => !path || path.endsWith("/judgments"));

function signedOut(acts) {
  if (areLabels(acts)) return tn(acts.length, "Signed out: sign in to save {count} label", "Signed out: sign in to save {count} labels");
  return tn(acts.length, "Signed out: sign in to save {count} action", "Signed out: sign in to save {count} actions");
}

function keptHere(acts, durable, sentence) {
  const values = { sentence };
  // The pair comes back only with the server's answer, so the page says that the key was heard.
  const { path, note } = acts[acts.length - 1];
  if (path?.endsWith("/undo") && !note.local) return t("{sentence}: the last action will be undone", values);
  if (durable && areLabels(acts)) return tn(acts.length, "{sentence}: {count} label kept in this browser", "{sentence}: {count} labels kept in this browser", values);
  if (durable) return tn(acts.length, "{sentence}: {count} action kept in this browser", "{sentence}: {count} actions kept in this browser", values);
  if (areLabels(acts)) return tn(acts.length, "{sentence}: {count} label kept while this page is open", "{sentence}: {count} labels kept while this page is open", values);
  return tn(acts.length, "{sentence}: {count} action kept while this page is open", "{sentence}: {count} actions kept while this page is open", values);
}

function notSaved(acts) {
  if (areLabels(acts)) return tn(acts.length, "{count} label not saved", "{count} labels not saved");
  return tn(acts.length, "{count} action not saved", "{count} actions not saved");
}

// The page shows "Saved" only when the server has stored every act.
function showOutbox(outbox, everSaved) {
  const kept = outbox.waiting;
  const sendError = kept.length ? outbox.sendError : null;
  if (sendError && sendError.kind === "signed-out") {
    setStatus("waiting", signedOut(kept), "/sign-in?next=/label/");
  } else if (sendError && sendError.kind === "somebody-else") {
    setStatus("waiting", t(sendError.sentence), "/label/");
  } else if (sendError) {
    setStatus("waiting", keptHere(kept, outbox.durable, t(sendError.sentence)));
  } else if (kept.length) {
    setStatus("saving", t("Saving …"));
  } else if (outbox.refused.length) {
    setStatus("refused", notSaved(outbox.refused));
  } else if (everSaved) {
    setStatus("saved", t("Saved"));
  } else {
    setStatus("ready", "");
  }
  showTray(outbox);
}

function showTray(outbox) {
  const tray = $(".tray");
  tray.hidden = outbox.refused.length === 0;
  const shown = [...tray.children].map((node) => node.dataset.act).join();
  if (shown === outbox.refused.map((act) => act.id).join()) return;
  const rows = outbox.refused.map((act) => {
    const row = make("article");
    row.dataset.act = act.id;
    const again = make("button", "tool", t("Try again"));
    again.onclick = () => outbox.tryAgain(act.id);
    const discard = make("button", "tool", t("Discard"));
    discard.onclick = () => outbox.discard(act.id);
    const what = make("b", "", t("Not saved: {what}.", { what: act.note.what }));
    const buttons = act.path ? [again, discard] : [discard];
    row.append(what, make("span", "", t(act.refused)), make("q", "", act.note.prompt), ...buttons);
    return row;
  });
  const focused = tray.contains(document.activeElement);
  tray.replaceChildren(...rows);
  if (focused) (tray.querySelector("button") ?? $(".responses")).focus({ preventScroll: true });
}

// A text that does not change is not announced: a repeated sentence ends with a space that breaks no line.
function announce(sentence) {
  const node = $(".announcer");
  node.textContent = node.textContent === sentence ? `${sentence}\u00a0` : sentence;
}

function snippet(pair) {
  const text = pair.prompt[pair.prompt.length - 1].text.replace(/\s+/g, " ");
  return text.length > 90 ? `${text.slice(0, 90)} …` : text;
}
