// The buffer of pairs: the pair on the screen and the next few.

const KEEP = 4;
const POLL = { first: 500, longest: 15000 }; // milliseconds, while there is nothing to judge

class PairBuffer {
  // `held()` returns further comparisons that the server must not send again; `changed()` is called
  // when the first pair, or the reason why there is none, may have changed.
  // `shown` is the id of the pair that was on the screen before a reload; it comes first if the
  // annotator still has it.
  constructor(annotator, { held, changed, shown }) {
    this.annotator = annotator;
    this.shown = shown;
    this.pairs = [];
    this.held = held;
    this.changed = changed;
    this.withOthers = 0; // pairs leased to others; known while there is nothing to judge
    this.reason = "loading"; // loading, a phase of the loop, unreachable, signed-out, somebody-else
    this.fetching = false;
    this.pause = POLL.first;
    this.timer = null;
  }

  get current() {
    return this.pairs[0] || null;
  }

  // Remove the first pair.  Call `fill` only after its act is in `held`: until the server has the
  // act, it sends a leased pair again.
  advance() {
    this.pairs.shift();
  }

  putBack(pair) {
    this.pairs = [pair, ...this.pairs.filter((each) => each.id !== pair.id)];
    this.changed();
  }

  // Put the pair after the one on the screen.
  putNext(pair) {
    const [current, ...rest] = this.pairs.filter((each) => each.id !== pair.id);
    this.pairs = current ? [current, pair, ...rest] : [pair];
    this.changed();
  }

  async fill() {
    if (this.fetching || this.pairs.length >= KEEP) return;
    this.fetching = true;
    clearTimeout(this.timer);
    const before = this.current;
    let found;
    try {
      found = await this.fetch();
    } finally {
      this.fetching = false;
    }
    if (before !== this.current || !before) this.changed();
    if (found) {
      this.pause = POLL.first;
    } else if (this.pairs.length < KEEP) {
      // No pair or no connection: ask again with increasing pauses.
      this.timer = setTimeout(() => this.fill(), this.pause);
      this.pause = Math.min(this.pause * 1.5, POLL.longest);
    }
  }

  async fetch() {
    const inHand = [...this.pairs.map((pair) => pair.id), ...this.held()];
    const wanted = KEEP - this.pairs.length;
    const query = new URLSearchParams({ n: wanted, holding: inHand.join(",") });
    let answer;
    try {
      // Another person's pairs have their own sides.
      answer = await request("GET", `/label/api/next?${query}`, null, this.annotator);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      this.reason = "unreachable";
      return false;
    }
    if (answer.status === 401 || answer.status === 403) {
      this.reason = answer.status === 401 ? "signed-out" : "somebody-else";
      return false;
    }
    if (answer.status !== 200 || !Array.isArray(answer.data.pairs)) {
      this.reason = "unreachable";
      return false;
    }
    // The answer may contain a pair that was judged after the request.
    const known = new Set([...this.pairs.map((pair) => pair.id), ...this.held()]);
    const fresh = answer.data.pairs.filter((pair) => !known.has(pair.id));
    const before = fresh.findIndex((pair) => pair.id === this.shown);
    if (before >= 0 && !this.pairs.length) fresh.unshift(...fresh.splice(before, 1));
    this.shown = null;
    this.pairs.push(...fresh);
    this.reason = answer.data.waiting_for || "labeling";
    this.withOthers = answer.data.with_others || 0;
    return fresh.length > 0;
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
