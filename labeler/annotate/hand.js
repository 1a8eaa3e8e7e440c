// The pairs in hand: the one on the screen and the next few, fetched ahead.

const KEEP = 4;
const POLL = { first: 2000, longest: 15000 }; // milliseconds, while there is nothing to judge

class Hand {
  // `held()` names further comparisons that must not come again; `changed()` when the first pair,
  // or the reason why there is none, may have changed.
  constructor({ held, changed }) {
    this.pairs = [];
    this.held = held;
    this.changed = changed;
    this.reason = "loading"; // loading, a phase of the loop, or unreachable
    this.fetching = false;
    this.pause = POLL.first;
    this.timer = null;
  }

  get current() {
    return this.pairs[0] || null;
  }

  // The first pair is dealt with.  Call `fill` only once its act is in `held`: the server gives
  // out a leased pair again until the act has arrived.
  advance() {
    return this.pairs.shift();
  }

  putBack(pair) {
    this.pairs = [pair, ...this.pairs.filter((each) => each.id !== pair.id)];
    this.changed();
  }

  async fill() {
    if (this.fetching || this.pairs.length >= KEEP) return;
    this.fetching = true;
    clearTimeout(this.timer);
    const before = this.current;
    const found = await this.fetch();
    this.fetching = false;
    if (before !== this.current || !before) this.changed();
    if (found) {
      this.pause = POLL.first;
    } else if (this.pairs.length < KEEP) {
      // Nothing there, or no connection: look again, less and less often.
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
      answer = await request("GET", `/label/api/next?${query}`);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      this.reason = "unreachable";
      return false;
    }
    if (answer.status === 401) {
      this.reason = "signed-out";
      return false;
    }
    if (answer.status !== 200) {
      this.reason = "unreachable";
      return false;
    }
    // A label given while this was under way may have come back in it.
    const known = new Set([...this.pairs.map((pair) => pair.id), ...this.held()]);
    const fresh = answer.data.pairs.filter((pair) => !known.has(pair.id));
    this.pairs.push(...fresh);
    this.reason = answer.data.waiting_for || "labeling";
    return fresh.length > 0;
  }
}

// Milliseconds that the page was visible since `start`.
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
