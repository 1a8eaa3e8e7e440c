// Shows state on the screen.  Only HTML from the server's renderer is set as HTML.

const $ = (selector) => element.querySelector(selector);
const $$ = (selector) => [...element.querySelectorAll(selector)];

const ROLES = { system: "System", user: "User", assistant: "Assistant" };
const OUTCOMES = { a: "A is better", b: "B is better", tie: "Tie", both_bad: "Both bad" };
const STRENGTHS = { 1: "slightly", 2: "clearly", 3: "much" };
const CRITERIA = { helpful: "More helpful", truthful: "More truthful", harmless: "More harmless", clear: "Clearer" };
// Title and sentence while there is no pair to judge, by phase of the loop or problem.
const NEXT_ITERATION = ["All caught up", "You have no pairs left to judge. New pairs will appear here after the next sampling."];
const IDLE = {
  loading: ["Loading", "The next pairs are being loaded."],
  sampling: ["New pairs are being sampled", "The model is responding to new prompts. The pairs will appear here automatically."],
  labeling: ["All caught up", "You have no pairs left to judge. New pairs will appear here automatically."],
  reward: NEXT_ITERATION,
  policy: NEXT_ITERATION,
  evaluating: NEXT_ITERATION,
  done: NEXT_ITERATION,
  nothing: ["Nothing to judge yet", "Pairs will appear here after the first sampling."],
  "somebody-else": ["Someone else has signed in", "Reload the page to continue with the account that is signed in now."],
  elsewhere: ["This page is open in another tab", "Your drafts and unsaved labels are kept."],
  unreachable: ["No connection", "Kitestring cannot be reached. This page keeps your labels and tries again."],
};

const MATH_NOTICE =
  "The formulas of both responses are shown as LaTeX: one of them has a formula that cannot be typeset, or too many formulas.";

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function fillText(node, shown, plain) {
  if (!shown.text.trim()) node.replaceChildren(make("p", "nothing", "(empty response)"));
  else if (plain) node.replaceChildren(make("pre", "plain", shown.text));
  else node.innerHTML = shown.html;
}

function showPair(pair, { plain, differences }) {
  $(".pair").hidden = false; // heights are measured
  showConversation(pair, plain);
  const [a, b] = [$(".response.a .text"), $(".response.b .text")];
  fillText(a, pair.a, plain);
  fillText(b, pair.b, plain);
  const notice = typesetAll(a, b) ? pair.notice : MATH_NOTICE;
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
  return `${outcome.toUpperCase()} is ${STRENGTHS[strength]} better`;
}

// Short enough for a phone's row of buttons, such as "A, clearly".
function judgmentInShort({ outcome, strength }) {
  const name = outcome.length === 1 ? outcome.toUpperCase() : OUTCOMES[outcome];
  return strength ? `${name}, ${STRENGTHS[strength]}` : name;
}

// The latest act, beside the button that undoes it.  Screen readers hear it from the announcer.
function showTrace(what) {
  $(".trace").textContent = what;
}

function heldByOthers(count) {
  if (count === 1) return " Another annotator has 1 pair that you may receive later.";
  return count ? ` Other annotators have ${count} pairs that you may receive later.` : "";
}

function showIdle(reason, today, withOthers = 0) {
  const [title, sentence] = IDLE[reason] || IDLE.labeling;
  // While the page waits for pairs or a connection, labels may be unsent, so it shows no count.
  const known = !["unreachable", "loading", "somebody-else", "elsewhere"].includes(reason);
  const thanks = known && today > 0 ? ` You judged ${today} today.` : "";
  $(".empty h1").textContent = title;
  $(".empty p").textContent = sentence + (known ? heldByOthers(withOthers) : "") + thanks;
}

// `state` is loading, judging or idle.
function showState(state) {
  $(".desk").dataset.state = state;
  $(".pair").hidden = state !== "judging";
  $(".empty").hidden = state === "judging";
}

// Without a pair, the bar has only Undo (see the styles), if there is anything to undo.
function showVerdict(shown) {
  $(".verdict").hidden = !shown;
}

function showPerson(person) {
  $("[data-person=name]").textContent = person.name;
  $("[data-person=initial]").textContent = [...person.name][0].toUpperCase();
  $("[data-person=password]").hidden = !person.password;
  $("[data-person=researcher]").hidden = person.role !== "researcher";
}

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)}%`);

// The server reports no agreement below 5% or above 95%: see storage/labeling/own_figures.py.
function agreementInWords({ agreement, shared_pairs: pairs }) {
  if (agreement === null) return ["–", "Shown the day after others have judged 20 of your pairs."];
  const share = percent(agreement);
  const value = agreement >= 0.95 ? `${share} or more` : agreement <= 0.05 ? `${share} or less` : share;
  return [value, `On ${pairs} pairs that others also judged, up to yesterday. Careful annotators disagree too.`];
}

// Each figure has a name, a value and an explanation.  `figures` is null if the server did not answer.
function fillFigures(figures) {
  if (!figures) {
    const row = make("div");
    row.append(make("dt", "", "Your statistics could not be loaded."), make("dd", "hint", "Try again in a moment."));
    return $(".figures dl").replaceChildren(row);
  }
  const { judgments, today, decided, median_seconds: seconds } = figures;
  const sides = decided ? `Of ${decided} preferences. Sides are random, so about 50% is expected.` : "";
  const rows = [
    ["Judged today", today, `${judgments} in total`],
    ["Median time per pair", seconds === null ? "–" : `${seconds.toFixed(1)} s`, ""],
    ["Ties", percent(figures.tie_rate), ""],
    ["Both bad", percent(figures.both_bad_rate), ""],
    ["Preferred the left response", percent(figures.left_rate), sides],
    ["Agreement with others", ...agreementInWords(figures)],
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
  node.title = sentence;
  if (!link) text.textContent = sentence;
  else {
    const anchor = make("a", "", sentence);
    anchor.href = link;
    text.replaceChildren(anchor);
  }
}

// Skips, flags and undos are not labels.
function labels(acts) {
  const noun = acts.every(({ path }) => !path || path.endsWith("/judgments")) ? "label" : "action";
  return acts.length === 1 ? `1 ${noun}` : `${acts.length} ${noun}s`;
}

// The page shows "Saved" only when the server has stored every act.
function showOutbox(outbox, everSaved) {
  const kept = outbox.waiting;
  const sendError = kept.length ? outbox.sendError : null;
  if (sendError && sendError.kind === "signed-out") {
    setStatus("waiting", `Signed out: sign in to save ${labels(kept)}`, "/sign-in?next=/label/");
  } else if (sendError && sendError.kind === "somebody-else") {
    setStatus("waiting", sendError.sentence, "/label/");
  } else if (sendError) {
    const where = outbox.durable ? "kept in this browser" : "kept while this page is open";
    setStatus("waiting", `${sendError.sentence}: ${labels(kept)} ${where}`);
  } else if (kept.length) {
    setStatus("saving", "Saving …");
  } else if (outbox.refused.length) {
    setStatus("refused", `${labels(outbox.refused)} not saved`);
  } else if (everSaved) {
    setStatus("saved", "Saved");
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
    const again = make("button", "tool", "Try again");
    again.onclick = () => outbox.tryAgain(act.id);
    const discard = make("button", "tool", "Discard");
    discard.onclick = () => outbox.discard(act.id);
    const what = make("b", "", `Not saved: ${act.note.what}.`);
    const buttons = act.path ? [again, discard] : [discard];
    row.append(what, make("span", "", act.refused), make("q", "", act.note.prompt), ...buttons);
    return row;
  });
  tray.replaceChildren(...rows);
}

const announce = (sentence) => {
  $(".announcer").textContent = sentence;
};

function snippet(pair) {
  const text = pair.prompt[pair.prompt.length - 1].text.replace(/\s+/g, " ");
  return text.length > 90 ? `${text.slice(0, 90)} …` : text;
}
