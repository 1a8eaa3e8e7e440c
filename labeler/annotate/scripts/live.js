// Live conversations: the annotator writes, two responses stream side by side, and the better one goes
// on.  A complete turn becomes the pair on the screen, so judging, undo and the outbox are the same.

const LIVE = "/label/api/live";
const LOADING = 600000; // milliseconds in which a large model may load
const AGAIN = 10000; // milliseconds until a refused conversation asks again
const MESSAGE = "live"; // name of the draft
const LOOK = 100; // milliseconds between two looks at the outbox
const LOST = t("The connection was lost. Send the message again.");
const UNREACHABLE = t("Kitestring cannot be reached. This page keeps your labels and tries again.");
const STOPPED = t("Stopped. Nothing was stored.");
const LAST_TURN = t("The conversation has reached its last turn. Start a new one.");
const BOTH_BAD = t("Neither reply can be answered after Both bad. Start a new conversation.");
const SET_ASIDE = t("You skipped or flagged the last turn. Start a new conversation.");

class Live {
  // `changed()` is called when another view must be shown, `offered()` when live conversations are
  // possible, and `ready(pair)` with a complete turn.
  // `unsaved(comparison)` is whether the server does not have its judgment yet, and `left()` is called
  // when the annotator goes back to the queue.  `drafts` keeps a message that is not sent.
  constructor(annotator, { changed, offered, ready, unsaved, left, drafts }) {
    this.annotator = annotator;
    this.drafts = drafts;
    this.changed = changed;
    this.offered = offered;
    this.left = left;
    this.known = false; // whether the server has said if live conversations are on
    this.enabled = false;
    this.begun = false; // a conversation that has no turn yet
    this.ready = ready;
    this.unsaved = unsaved;
    this.active = false;
    this.root = $(".live");
    this.field = this.root.querySelector("textarea");
    this.turns = 0;
    this.suggestions = [];
    this.reset();
    this.acts = JSON.parse(recall(this.actsKey, "sessionStorage") ?? "[]"); // ids, of the conversation
    this.field.value = drafts.textOf(MESSAGE);
    this.field.oninput = () => drafts.keepText(MESSAGE, this.field.value);
    this.root.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      this.send();
    };
    this.button("fresh").onclick = () => {
      this.reset();
      this.begun = true;
      this.keepActs([]);
      this.say("");
      this.show();
      this.changed();
    };
    this.button("stop").onclick = () => this.stop();
    this.start();
  }

  // After a reload, a tab that was in the conversation returns to it.
  async start() {
    await this.load();
    if (this.enabled && !this.active && recall(this.place, "sessionStorage") === "live") this.toggle();
  }

  get place() {
    return `place.${this.annotator}`;
  }

  get actsKey() {
    return `live-acts.${this.annotator}`;
  }

  // After a reload, the page still knows which act an undo may take back here.
  keepActs(acts) {
    this.acts = acts;
    remember(this.actsKey, JSON.stringify(acts), "sessionStorage");
  }

  enter() {
    this.active = true;
    remember(this.place, "live", "sessionStorage");
  }

  button(name) {
    return this.root.querySelector(`[data-live=${name}]`);
  }

  // A new conversation.
  reset() {
    this.conversation = null; // its id
    this.turn = 0;
    this.messages = [];
    this.waitsFor = null; // the comparison whose judgment the next turn needs
    this.over = "";
    this.stopped = null; // aborts the stream; null while nothing streams
  }

  // Ask the server whether live conversations are on, and for the newest one.
  async load() {
    const { status, data } = await this.ask("GET", LIVE);
    if (status !== 200) return { reason: data.error };
    this.known = true;
    for (const button of $$("[data-do=live]")) button.hidden = !data.enabled;
    if (data.enabled && !this.enabled) {
      this.enabled = true;
      this.offered();
    }
    if (!data.enabled) return data;
    this.turns = data.turns;
    this.suggestions = data.suggestions;
    if (data.conversation && !this.conversation && !this.begun) {
      const { id, turn, messages, over } = data.conversation;
      Object.assign(this, { conversation: id, turn, messages, over: over ?? "" });
    }
    return data;
  }

  async ask(method, path, timeout) {
    try {
      return await request(method, path, null, this.annotator, timeout);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      return { status: 0, data: { error: UNREACHABLE } };
    }
  }

  // Enter the conversation, or go back to the queue.
  async toggle() {
    if (this.active) return this.leave();
    this.enter();
    this.changed();
    this.say(t("Loading …"));
    const { reason, conversation } = await this.load();
    if (!this.active) return;
    if (conversation?.pair) return this.complete(conversation.pair, conversation.turn);
    this.show();
    if (reason) this.refuse(reason);
    else this.prepare();
  }

  async prepare() {
    this.say(t("The models are being loaded …"));
    const { status, data } = await this.ask("POST", `${LIVE}/prepare`, LOADING);
    if (!this.active || this.stopped) return;
    if (status === 200) this.say(this.over);
    else this.refuse(data.error);
  }

  leave() {
    this.active = false;
    clearTimeout(this.later);
    remember(this.place, "queue", "sessionStorage");
    this.stop();
    this.left();
  }

  // What is not on the screen must not be found by a search of the page.
  clear() {
    for (const part of [".talk", ".streams"]) this.root.querySelector(part).replaceChildren();
  }

  // The turn that streams or that is written next; null once the conversation is over.
  get nextTurn() {
    return this.over ? null : { turn: this.stopped ? this.turn : this.turn + 1, turns: this.turns };
  }

  show() {
    const streams = Boolean(this.stopped);
    // While responses stream, the page is that of their pair.
    const talk = this.root.querySelector(".talk");
    if (streams) showConversation(talk, this.messages, false);
    else if (this.messages.length) {
      talk.replaceChildren(headingOf(talk), ...this.messages.map((message, index) => makeTurn(message, false, index === this.messages.length - 1)));
    } else talk.replaceChildren();
    showTurn(this.nextTurn);
    this.root.querySelector(".intro").hidden = streams || this.messages.length > 0;
    this.root.querySelector("form label").hidden = streams || Boolean(this.over);
    this.root.querySelector(".streams").hidden = !streams;
    this.button("send").hidden = streams || Boolean(this.over);
    this.button("stop").hidden = !streams;
    this.button("fresh").hidden = streams || !this.conversation;
    const offers = this.conversation || streams ? [] : this.suggestions;
    this.root.querySelector(".suggested").replaceChildren(...offers.map((text) => this.suggestion(text)));
    this.button("fresh").classList.toggle("strong", Boolean(this.over));
    if (this.over) this.say(this.over);
    if (this.over) this.button("fresh").focus();
    else if (!streams) this.field.focus();
    else this.button("stop").focus({ preventScroll: true });
    if (streams) scrollToResponses(talk.lastElementChild, this.root.querySelector(".streams"));
  }

  suggestion(text) {
    const button = make("button", "tool", text);
    button.type = "button";
    button.dir = "auto";
    button.onclick = () => {
      this.field.value = text;
      this.drafts.keepText(MESSAGE, text);
      this.field.focus();
    };
    return button;
  }

  say(sentence) {
    this.root.querySelector(".heard").textContent = t(sentence); // it may be the server's
  }

  // Asks again: what stands in the way, such as training, ends by itself.
  refuse(sentence) {
    this.later = setTimeout(() => this.retry(), AGAIN);
    this.say(`${t(sentence)} ${t("Meanwhile, the queue has pairs.")}`);
  }

  async retry() {
    const { reason } = await this.load();
    if (!this.active || this.stopped) return;
    if (reason) this.refuse(reason);
    else this.prepare();
  }

  stop() {
    this.stopped?.abort();
  }

  async send() {
    const text = this.field.value;
    if (this.stopped) return;
    if (!text.trim()) return this.say(t("Write a message first."));
    const before = { conversation: this.conversation, messages: this.messages, turn: this.turn };
    clearTimeout(this.later);
    this.stopped = new AbortController();
    this.messages = [...this.messages, { role: "user", text, html: make("p", "", text).outerHTML }];
    this.turn += 1;
    this.say("");
    this.streams();
    this.show();
    announce(t("Sent. Both replies are being written."));
    const problem = await this.sent(text, this.stopped.signal);
    this.stopped = null;
    if (problem === null) return;
    Object.assign(this, before);
    this.show();
    this.say(problem);
    this.field.value = text;
  }

  // Returns what went wrong; null if the turn is complete.
  async sent(text, signal) {
    try {
      while (this.unsaved(this.waitsFor)) {
        if (signal.aborted) return STOPPED;
        await new Promise((resolve) => setTimeout(resolve, LOOK));
      }
      const response = await fetch(`${LIVE}/turns`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Kitestring-Annotator": this.annotator },
        body: JSON.stringify({ text, conversation: this.conversation }),
        cache: "no-store",
        signal,
      });
      if (!response.ok) return (await response.json()).error;
      return await this.read(response.body.getReader());
    } catch (problem) {
      if (signal.aborted) return STOPPED;
      if (problem instanceof TypeError || problem instanceof SyntaxError) return LOST;
      throw problem;
    }
  }

  // Lines of JSON, as docs/http.md describes them.
  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return LOST;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const event = JSON.parse(line);
        if (event.event === "error") return event.error;
        if (event.event === "pair") {
          this.stopped = null;
          this.field.value = "";
          this.drafts.keepText(MESSAGE, "");
          if (this.turn === 1) this.load(); // other suggestions for the next conversation
          this.complete(event.pair, this.turn);
          return null;
        }
        this.hear(event);
      }
    }
  }

  hear({ event, side, text, conversation, turn, messages }) {
    if (event === "turn") {
      Object.assign(this, { conversation, turn, messages, begun: false });
      return this.show();
    }
    const reply = this.root.querySelector(`.streams .${side} p`);
    if (event === "text") reply.append(text);
    if (event === "again") reply.replaceChildren();
    reply.classList.toggle("ended", event === "end");
  }

  // Two cards like those of a pair.  They exist only while responses stream.
  streams() {
    const cards = ["a", "b"].map((side) => {
      const name = side === "a" ? t("Response A") : t("Response B");
      const card = make("section", `response ${side}`);
      card.setAttribute("aria-label", name);
      const title = make("h2");
      const badge = make("span", "badge", side.toUpperCase());
      badge.setAttribute("aria-hidden", "true");
      title.append(badge, ` ${name}`);
      const text = make("div", "text");
      text.dir = "auto";
      text.append(make("p"));
      card.append(title, text);
      return card;
    });
    this.root.querySelector(".streams").replaceChildren(...cards);
  }

  complete(pair, turn) {
    clearTimeout(this.later);
    this.waitsFor = pair.id;
    this.turn = turn;
    pair.live = { turn, turns: this.turns, conversation: this.conversation };
    expanded.set(pair.prompt, expanded.get(this.messages)); // as it was while they streamed
    this.ready(pair);
  }

  // A turn was judged, skipped or flagged.
  answered(act, pair, outcome) {
    this.keepActs([...this.acts, act]);
    const reply = { a: pair.a, b: pair.b, tie: pair.a }[outcome];
    this.conversation = pair.live.conversation;
    this.turn = pair.live.turn;
    this.waitsFor = pair.id;
    this.messages = reply ? [...pair.prompt, { role: "assistant", ...reply }] : [...pair.prompt];
    if (!reply) this.over = outcome === "both_bad" ? BOTH_BAD : SET_ASIDE;
    else this.over = pair.live.turn >= this.turns ? LAST_TURN : "";
    this.say(outcome === "tie" && !this.over ? t("After a tie, the conversation goes on with A.") : "");
  }
}

// In the head above the conversation and above the pair of a turn.  `turn` is null once it is over.
function showTurn(turn) {
  $(".live-head .turns").textContent = turn ? turnInWords(turn) : "";
}

function turnInWords({ turn, turns }) {
  return t("Turn {turn} of {turns}", { turn, turns });
}
