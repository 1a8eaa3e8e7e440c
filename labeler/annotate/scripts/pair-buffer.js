// The buffer of pairs: the pair on the screen and the next ones, enough to go on without a connection.

const FIRST = 4; // pairs of the first request: the server renders all before it answers
const STEP = 16; // most pairs of a request
const POLL = { first: 500, longest: 15000 }; // milliseconds, while there is nothing to judge
const RENEW = 600000; // milliseconds; leases last 30 minutes
const AWAY = 1800000; // milliseconds without an act, after which leases are left to end
const QUICK = 5000; // milliseconds to wait for the server if there is a copy of the pairs

class PairBuffer {
  // `held()` returns further comparisons that the server must not send again; `changed()` is called
  // when the first pair, or the reason why there is none, may have changed.
  // `shown` is the id of the pair that was on the screen before a reload; it comes first if the
  // annotator still has it.  `copy` is an `OfflineCopy`, and `copied` the pairs that it had.
  constructor(annotator, { held, changed, shown, copy, copied }) {
    this.annotator = annotator;
    this.shown = shown;
    this.pairs = [];
    this.copy = copy;
    this.copied = copied; // shown once the server says which it still wants, or does not answer
    this.held = held;
    this.changed = changed;
    this.withOthers = 0; // pairs leased to others; known while there is nothing to judge
    this.reason = "loading"; // loading, a phase of the loop, unreachable, signed-out, somebody-else, elsewhere
    this.fetching = false;
    this.pause = POLL.first;
    this.timer = null;
    this.share = FIRST; // how many pairs the server wants this page to have
    this.latency = 0; // milliseconds of the latest request
    this.pace = 10000; // milliseconds per pair
    this.acted = this.asked = Date.now();
    setInterval(() => this.renew(), RENEW / 10);
  }

  get current() {
    return this.pairs[0] || null;
  }

  // As many pairs as the server gives, and enough for three requests at the annotator's pace.
  get wanted() {
    return Math.max(this.share, Math.min(FIRST + Math.floor((3 * this.latency) / this.pace), STEP));
  }

  // Few large requests cost the server less than many small ones.
  get short() {
    return this.pairs.length < this.wanted - Math.floor(this.wanted / 5);
  }

  // Remove the first pair.  Call `fill` only after its act is in `held`: until the server has the
  // act, it sends a leased pair again.
  advance() {
    this.pace = 0.7 * this.pace + 0.3 * Math.min(60000, Date.now() - this.acted);
    this.acted = Date.now();
    this.copy.drop([this.pairs.shift().id]);
  }

  putBack(pair) {
    this.pairs = [pair, ...this.pairs.filter((each) => each.id !== pair.id)];
    this.acted = Date.now();
    if (!pair.revises && !pair.live) this.copy.keep([pair]); // a judged pair is not one to go on with
    this.changed();
  }

  // Put the pair after the one on the screen.
  putNext(pair) {
    const [current, ...rest] = this.pairs.filter((each) => each.id !== pair.id);
    this.pairs = current ? [current, pair, ...rest] : [pair];
    this.copy.keep([pair]);
    this.changed();
  }

  // Without pairs that the server gives again when they are wanted.
  leaveOut(unwanted) {
    const left = this.pairs.filter(unwanted).map(({ id }) => id);
    this.pairs = this.pairs.filter((pair) => !unwanted(pair));
    this.copy.drop(left);
    this.changed();
    this.fill();
  }

  // Stop showing pairs, because of another tab or another person.
  stop(reason) {
    clearTimeout(this.timer);
    this.reason = reason;
    this.pairs = [];
    this.copied = [];
    this.changed();
  }

  // Go on with the pairs that the browser's copy has now.
  resume(copied, shown) {
    this.copied = copied;
    this.shown = shown;
    this.reason = "loading";
    this.changed();
    this.fill();
  }

  async fill() {
    if (this.fetching || this.reason === "elsewhere" || !this.short) return;
    clearTimeout(this.timer);
    const before = this.current;
    const inHand = this.pairs.length + this.copied.length;
    const found = await this.fetchOnce(Math.max(1, Math.min(this.wanted - inHand, inHand ? STEP : FIRST)));
    if (this.reason === "elsewhere") return;
    if (before !== this.current || !before) this.changed();
    if (found) {
      this.pause = POLL.first;
      this.fill();
    } else if (this.short) {
      // No pair or no connection: ask again with increasing pauses.
      this.timer = setTimeout(() => this.fill(), this.pause);
      this.pause = Math.min(this.pause * 1.5, POLL.longest);
    }
  }

  // The page closes: others get the pairs that a reload would not show at once.  A reload asks for
  // them again.
  release() {
    const spare = this.pairs.slice(FIRST).map(({ id }) => id);
    if (!spare.length) return;
    fetch("/label/api/release", {
      method: "POST",
      keepalive: true, // the page does not wait
      headers: { "Content-Type": "application/json", "X-Kitestring-Annotator": this.annotator },
      body: JSON.stringify({ comparisons: spare }),
    }).catch(() => {}); // without a connection, the leases end by themselves
  }

  // A full buffer asks for nothing, but its leases must not end while the annotator reads.
  renew() {
    const now = Date.now();
    if (this.fetching || !this.pairs.length || now - this.asked < RENEW || now - this.acted > AWAY) return;
    this.fetchOnce(1);
  }

  async fetchOnce(wanted) {
    this.fetching = true;
    try {
      return await this.fetch(wanted);
    } finally {
      this.fetching = false;
    }
  }

  async fetch(wanted) {
    // The queue does not know live turns.
    const inHand = [...this.pairs, ...this.copied].filter((pair) => !pair.live).map((pair) => pair.id);
    const query = new URLSearchParams({ n: wanted, holding: [...new Set([...inHand, ...this.held()])].join(",") });
    const start = Date.now();
    let answer;
    try {
      // Another person's pairs have their own sides.
      const timeout = this.copied.length ? QUICK : undefined;
      answer = await request("GET", `/label/api/next?${query}`, null, this.annotator, timeout);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      return this.failed("unreachable");
    }
    if (this.reason === "elsewhere") return false;
    if (answer.status === 401) return this.failed("signed-out");
    if (answer.status === 403) {
      this.stop("somebody-else");
      return false;
    }
    if (answer.status !== 200 || !Array.isArray(answer.data.pairs)) return this.failed("unreachable");
    this.asked = Date.now();
    this.latency = this.asked - start;
    return this.take(answer.data);
  }

  failed(reason) {
    if (this.reason === "elsewhere") return false;
    this.reason = reason;
    if (reason === "unreachable") this.add([]); // the copied pairs
    return false;
  }

  take({ pairs, gone, share, waiting_for: phase, with_others: others }) {
    // A pair that is being read stays; a judgment of it still counts.
    const lost = new Set(gone.filter((id) => id !== this.current?.id));
    const kept = new Set(this.held());
    const dropped = [...this.pairs, ...this.copied].filter(({ id }) => lost.has(id) && !kept.has(id));
    if (dropped.length) this.copy.drop(dropped.map(({ id }) => id));
    this.pairs = this.pairs.filter((pair) => !dropped.includes(pair));
    this.copied = this.copied.filter((pair) => !dropped.includes(pair));
    this.share = share;
    this.reason = phase || "labeling";
    this.withOthers = others || 0;
    return this.add(pairs) > 0;
  }

  // Append the copied pairs and these, without those that were judged since the request.
  add(pairs) {
    const known = new Set([...this.pairs.map((pair) => pair.id), ...this.held()]);
    const fresh = [...this.copied, ...pairs.filter(({ id }) => !known.has(id))];
    const before = fresh.findIndex((pair) => pair.id === this.shown);
    if (before >= 0 && !this.pairs.length) fresh.unshift(...fresh.splice(before, 1));
    this.shown = null;
    this.copied = [];
    this.pairs.push(...fresh);
    if (fresh.length) this.copy.keep(fresh);
    return fresh.length;
  }
}

// Milliseconds for which the page was visible since `start`.
class Stopwatch {
  constructor() {
    this.start();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.spent += performance.now() - this.since;
      else this.since = performance.now();
    });
  }

  start() {
    this.spent = 0;
    this.since = performance.now();
  }

  read() {
    return Math.round(this.spent + (document.hidden ? 0 : performance.now() - this.since));
  }
}
