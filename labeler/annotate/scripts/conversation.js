// The prompt of a pair.  Older turns are collapsed and a long last turn is cut off, so that the
// responses are near the top of the page.

const SHORT_HISTORY = 600; // characters of older turns that are always shown, in at most
const FEW_TURNS = 4;
const LONG_TURN = 1000; // characters from which a last turn may be cut off
const expanded = new WeakMap(); // what was expanded, for each prompt: it stays so after an undo

function showConversation(place, prompt, plain) {
  if (!expanded.has(prompt)) expanded.set(prompt, { history: false, turn: false });
  const state = expanded.get(prompt);
  const last = lastOfUser(prompt);
  const turns = prompt.map((message, index) => makeTurn(message, plain, index === prompt.length - 1));
  place.replaceChildren(headingOf(place), ...collapsed(turns, prompt, state));
  if (prompt[last].text.length > LONG_TURN) cutOff(turns[last], state);
}

// For screen readers.
const headingOf = (place) => make("h2", "unseen", place.getAttribute("aria-label"));
const lastOfUser = (prompt) => Math.max(0, prompt.findLastIndex(({ role }) => role === "user"));

function collapsed(turns, prompt, state) {
  const last = lastOfUser(prompt);
  const older = prompt.slice(0, last);
  const short = older.reduce((sum, { text }) => sum + text.length, 0) <= SHORT_HISTORY;
  if (older.length <= FEW_TURNS && short) return turns;
  return [makeHistory(turns.slice(0, last), older, state), ...turns.slice(last)];
}

function makeTurn(message, plain, isLast) {
  const turn = make("div", `turn ${message.role}${isLast ? " last" : ""}`);
  const text = make("div", "text");
  text.dir = "auto";
  fillText(text, message, plain, 3);
  typesetEach(text);
  addCodeBars(text);
  turn.append(make("h3", "who", ROLES[message.role]), text);
  return turn;
}

function makeHistory(turns, messages, state) {
  const history = make("details", "history");
  history.open = state.history;
  history.append(make("summary", "", historyInWords(messages)), ...turns);
  history.ontoggle = () => {
    state.history = history.open;
  };
  return history;
}

// Such as "System prompt and 4 earlier messages".
function historyInWords(messages) {
  const count = messages.filter(({ role }) => role !== "system").length;
  const earlier = tn(count, "{count} earlier message", "{count} earlier messages");
  if (count === messages.length) return earlier;
  return count ? t("System prompt and {messages}", { messages: earlier }) : t("System prompt");
}

// The turn must be on the page: only then is its height known.
function cutOff(turn, state) {
  const text = turn.querySelector(".text");
  turn.classList.add("cut");
  if (text.scrollHeight <= text.clientHeight + 1) return turn.classList.remove("cut");
  const button = make("button", "tool more");
  button.type = "button";
  const show = () => {
    turn.classList.toggle("cut", !state.turn);
    button.textContent = state.turn ? t("Show less") : t("Show the whole message");
    button.setAttribute("aria-expanded", String(state.turn));
  };
  button.onclick = () => {
    state.turn = !state.turn;
    show();
  };
  turn.append(button);
  show();
}

// Bring responses above the bar, as far as the message before them stays in the window.
function scrollToResponses(message, responses) {
  const below = responses.getBoundingClientRect().bottom + $(".verdict").offsetHeight - window.innerHeight;
  const above = message.getBoundingClientRect().top - 16;
  window.scrollBy(0, Math.max(0, Math.min(below, above)));
}

// To the responses; from there, back to the top.
function jumpToResponses() {
  const before = window.scrollY;
  $(".responses").scrollIntoView();
  $(".responses").focus({ preventScroll: true });
  if (Math.abs(window.scrollY - before) < 4) window.scrollTo(0, 0);
}
