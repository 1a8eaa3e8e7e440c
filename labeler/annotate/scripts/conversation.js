// The prompt of a pair.  Older turns are collapsed and a long last turn is cut off, so that the
// responses are near the top of the page.

const SHORT_HISTORY = 600; // characters of older turns that are always shown
const LONG_TURN = 1000; // characters from which a last turn may be cut off
const expanded = new WeakMap(); // what was expanded, for each pair: it stays so after an undo

function showConversation(pair, plain) {
  if (!expanded.has(pair)) expanded.set(pair, { history: false, turn: false });
  const state = expanded.get(pair);
  const last = Math.max(0, pair.prompt.findLastIndex(({ role }) => role === "user"));
  const turns = pair.prompt.map((message, index) => makeTurn(message, plain, index === pair.prompt.length - 1));
  const history = turns.slice(0, last);
  const size = pair.prompt.slice(0, last).reduce((sum, { text }) => sum + text.length, 0);
  const collapsed = size > SHORT_HISTORY ? [makeHistory(history, pair.prompt.slice(0, last), state)] : history;
  $(".prompt").replaceChildren(...collapsed, ...turns.slice(last));
  if (pair.prompt[last].text.length > LONG_TURN) cutOff(turns[last], state);
}

function makeTurn(message, plain, isLast) {
  const turn = make("div", `turn ${message.role}${isLast ? " last" : ""}`);
  const text = make("div", "text");
  text.dir = "auto";
  fillText(text, message, plain);
  typesetEach(text);
  addCodeBars(text);
  turn.append(make("span", "who", ROLES[message.role]), text);
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

// To the responses; from there, back to the top.
function jumpToResponses() {
  const before = window.scrollY;
  $(".responses").scrollIntoView();
  $(".responses").focus({ preventScroll: true });
  if (Math.abs(window.scrollY - before) < 4) window.scrollTo(0, 0);
}
