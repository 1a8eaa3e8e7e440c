// One tab at a time has the desk of an annotator.  Two would show the same pair, and the second
// judgment would revise the first.  With Web Locks (https or localhost), the lock says which one has it;
// over plain http, the tabs ask each other.

const PATIENCE = { closing: 500, answer: 500, leaving: 3000, reload: 3000 }; // milliseconds

class Tabs {
  // `enter()` is called when this tab gets the desk, and `leave()` when another tab takes over; it
  // returns a promise that this tab has stopped.
  constructor(annotator, { enter, leave }) {
    this.name = `kitestring.desk.${annotator}`;
    this.id = newId();
    this.left = `left.${annotator}`; // the turn for which a tab left the desk
    this.enter = enter;
    this.leave = leave;
    this.has = false; // whether this tab has the desk
    this.turn = null; // names the latest time that another tab left for this one
    this.channel = new BroadcastChannel(this.name);
    this.channel.onmessage = ({ data }) => this.hear(data);
    this.since = 0; // when this tab got the desk, ms
    this.asking = false; // whether this tab asks who has the desk
    this.look = () => {}; // makes a tab that waits look again
    window.addEventListener("pagehide", () => this.has && this.channel.postMessage({ closed: true }));
  }

  // Wait until this tab has the desk: at once, after the other tab was closed, or when the annotator
  // wants it here.
  async run({ lost = false } = {}) {
    let [wanted, wake] = [false, () => {}];
    $(".here").onclick = () => {
      wanted = true;
      wake();
    };
    this.look = () => wake();
    window.addEventListener("focus", this.look); // a tab that crashed says nothing
    // The tab that takes over may need a moment, so the one that lost the desk does not ask at once.
    let has = !lost && (await this.claim(false));
    while (!has) {
      showElsewhere(true);
      if (!wanted) await new Promise((woken) => (wake = woken));
      const here = wanted;
      wanted = false;
      has = await this.claim(here);
    }
    window.removeEventListener("focus", this.look);
    this.look = () => {};
    showElsewhere(false);
    this.enter();
  }

  // Only with `here` does it end the turn of another tab.
  async claim(here) {
    this.turn = here ? newId() : null;
    if (navigator.locks) this.has = await this.lockIn(here);
    else if (here) {
      if (!(await this.ask("leave", PATIENCE.leaving))) this.turn = null;
      this.has = true;
    } else this.has = !(await this.ask("who", PATIENCE.answer));
    if (this.has && !navigator.locks) this.hold(here);
    return this.has;
  }

  // On a busy machine two tabs may both get no answer in time: the one that got the desk first keeps it.
  hold(forced) {
    this.since = Date.now();
    this.channel.postMessage({ holder: this.id, since: forced ? 0 : this.since });
  }

  // A tab that is being reloaded may find its own lock for a moment.
  async lockIn(here) {
    if (!here) return this.lock({ signal: AbortSignal.timeout(PATIENCE.closing) });
    this.channel.postMessage({ question: "leave", from: this.id, turn: this.turn });
    const left = await this.lock({ signal: AbortSignal.timeout(PATIENCE.leaving) });
    if (left) return true;
    this.turn = null;
    return this.lock({ steal: true });
  }

  // The lock may arrive before what the other tab wrote to localStorage: a saved act would be sent
  // again, and a new one would be missing.  Its writes arrive in order, and the last one is the turn.
  async caughtUp() {
    const late = AbortSignal.timeout(PATIENCE.leaving);
    while (this.turn && recall(this.left) !== this.turn && !late.aborted) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  lock(options) {
    return new Promise((got) => {
      const hold = () => {
        got(true);
        return new Promise((release) => (this.release = release));
      };
      navigator.locks.request(this.name, options, hold).catch(() => {
        got(false);
        this.lose(); // stolen: this tab did not answer in time
      });
    });
  }

  async lose(turn) {
    if (!this.has) return;
    this.has = false;
    await this.leave();
    if (turn) remember(this.left, turn);
    this.release?.();
    this.run({ lost: true });
  }

  // Whether another tab answered within so many milliseconds.
  ask(question, patience) {
    this.asking = question === "who";
    return new Promise((answered) => {
      const finish = (found) => {
        clearTimeout(late);
        this.heard = null;
        this.asking = false;
        answered(found);
      };
      this.heard = () => finish(true);
      const late = setTimeout(() => finish(false), patience);
      this.channel.postMessage({ question, from: this.id, turn: this.turn });
    });
  }

  async hear({ question, from, turn, to, closed, holder, since }) {
    if (holder && this.has) {
      const first = since < this.since || (since === this.since && holder < this.id);
      if (first) this.lose();
      else this.channel.postMessage({ holder: this.id, since: this.since });
    }
    if (closed) setTimeout(() => this.look(), PATIENCE.reload); // unless it was only reloaded
    if (to === this.id) this.heard?.(); // a late answer names its holder, which is compared above
    // Of two tabs that ask at the same time, one gets the desk.
    const first = question === "who" && this.asking && this.id < from;
    if (!question || !(this.has || first)) return;
    if (question === "leave") await this.lose(turn);
    this.channel.postMessage({ to: from, ...(this.has && { holder: this.id, since: this.since }) });
  }
}

function showElsewhere(elsewhere) {
  $(".here").hidden = !elsewhere;
  if (!elsewhere) return;
  showState("idle");
  showIdle("elsewhere", 0);
}
