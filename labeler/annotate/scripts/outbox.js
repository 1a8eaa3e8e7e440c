// Acts that are not saved yet.  Each has its own key in localStorage, so that two tabs cannot
// overwrite each other's, and belongs to one annotator, because people share browsers.
// Acts are sent one after the other, in order: an undo must not overtake the label it undoes.
// An act is sent again after a failed connection, any 5xx (503: the server's disk refused the
// write), 401, 403, 408 and 429.  After any other 4xx it is shown as not saved.

const RETRY = { first: 500, longest: 15000 }; // milliseconds
const TIMEOUT = 20000;

class Unreachable extends Error {}

// A request to Kitestring: {status, data}.  Throws Unreachable if Kitestring did not answer; a captive
// portal or a maintenance page may answer 200 to any request.
async function request(method, path, body, annotator, timeout = TIMEOUT) {
  const headers = { Accept: "application/json" };
  if (body) headers["Content-Type"] = "application/json";
  if (annotator) headers["X-Kitestring-Annotator"] = annotator;
  let response, text;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal: AbortSignal.timeout(timeout),
      cache: "no-store",
    });
    text = await response.text();
  } catch (problem) {
    throw new Unreachable(String(problem));
  }
  let data = {};
  try {
    data = JSON.parse(text);
  } catch {
    if (response.ok) throw new Unreachable(`${path} was answered by something else`);
    data = { error: t("The server answered {status}.", { status: response.status }) };
  }
  return { status: response.status, data };
}

// Adds this browser's offset from UTC in minutes to a path whose answer counts "today".
const byOwnDay = (path) => `${path}?offset=${-Math.round(new Date().getTimezoneOffset())}`;

// crypto.randomUUID exists only with TLS or on localhost, but a lab may use http://host:7860.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [0, 8, 12, 16, 20].map((at, i, all) => hex.slice(at, all[i + 1])).join("-");
}

class Outbox {
  // Calls `changed()` after every change of state, `saved(act, data)` after each commit, and
  // `discarded(act)` when the annotator discards one.  `settled()` is a promise that pairs which left
  // the buffer also left the browser's copy: a pair whose act is forgotten must not come back.
  // `turnedAway()` is called when another person has signed in.
  constructor(annotator, { changed, saved, discarded, settled, turnedAway }) {
    this.annotator = annotator;
    this.turnedAway = turnedAway;
    this.settled = settled;
    this.prefix = `kitestring.outbox.${annotator}.`;
    this.changed = changed;
    this.saved = saved;
    this.discarded = discarded;
    this.acts = []; // {id, path, body, note, at, refused: sentence|null, earlier: of an earlier page}
    this.sendError = null; // why the first act was not sent: {kind, sentence}
    this.durable = true;
    this.sending = null; // the loop that sends, a promise
    this.resting = false; // while another tab sends
    this.pause = RETRY.first;
    this.timer = null;
    this.load();
  }

  load() {
    const volatile = this.acts.filter((act) => act.volatile);
    try {
      const found = Object.keys(localStorage)
        .filter((key) => key.startsWith(this.prefix))
        .map((key) => this.parse(key));
      const earlier = found.map((act) => ({ ...act, earlier: true }));
      this.acts = [...earlier, ...volatile].sort((one, other) => one.at - other.at);
    } catch {
      this.durable = false;
    }
  }

  // An act that cannot be read stays in localStorage and is shown among the refused ones.
  parse(key) {
    const kept = localStorage.getItem(key);
    try {
      const { id, path, body, note, at, refused } = JSON.parse(kept);
      if (path.startsWith("/label/api/") && body.id === id && note.what) return { id, path, body, note, at, refused };
    } catch {
      // as below
    }
    const id = key.slice(this.prefix.length);
    const refused = t("The copy in this browser cannot be read.");
    return { id, path: null, body: {}, note: { what: t("A label"), prompt: String(kept).slice(0, 200) }, at: 0, refused };
  }

  get waiting() {
    return this.acts.filter((act) => act.refused === null);
  }

  // Whether some acts are lost when the page is closed.
  get hasVolatileActs() {
    return !this.durable && this.acts.length > 0;
  }

  get refused() {
    return this.acts.filter((act) => act.refused !== null);
  }

  // Comparisons that are answered, although the server may not know it yet.
  get answered() {
    const undone = this.acts.map((act) => act.body.replaces);
    return this.acts.filter((act) => !undone.includes(act.id)).map((act) => act.body.comparison);
  }

  // Comparisons with unsent acts, which the server must not send again.
  get comparisons() {
    return this.acts.map((act) => act.body.comparison).filter(Boolean);
  }

  add(path, body, note) {
    const last = this.acts.length ? this.acts[this.acts.length - 1].at : 0;
    const act = { id: body.id, path, body, note, at: Math.max(Date.now(), last + 1), refused: null };
    this.acts.push(act);
    this.store(act);
    this.changed();
    this.send();
  }

  store(act) {
    try {
      localStorage.setItem(this.prefix + act.id, JSON.stringify(act));
    } catch {
      this.durable = false; // private mode or full: the act lives as long as the page
      act.volatile = true;
    }
  }

  remove(id) {
    this.acts = this.acts.filter((act) => act.id !== id);
    try {
      localStorage.removeItem(this.prefix + id);
    } catch {
      this.durable = false;
    }
    this.changed();
  }

  discard(id) {
    const act = this.acts.find((each) => each.id === id);
    this.remove(id);
    this.discarded(act);
  }

  tryAgain(id) {
    const act = this.acts.find((each) => each.id === id);
    act.refused = null;
    this.store(act);
    this.send();
  }

  // Leave the acts in localStorage to another tab.  The promise is kept when nothing is being sent.
  async rest() {
    this.acts = this.acts.filter((act) => act.volatile);
    this.resting = !this.acts.length;
    this.changed();
    if (this.resting) await this.sending;
  }

  resume() {
    this.resting = false;
    this.load();
    this.changed();
    this.send();
  }

  // Send the waiting acts, in one loop at a time.  After a failure, retry with twice the pause.
  send() {
    if (this.resting || this.sending) return;
    clearTimeout(this.timer);
    if (!this.waiting.length) return this.changed();
    this.sending = this.sendAll().finally(() => {
      this.sending = null;
      this.changed();
    });
  }

  async sendAll() {
    while (this.waiting.length) {
      this.changed();
      if (!(await this.sendOne(this.waiting[0]))) {
        this.timer = setTimeout(() => this.send(), this.pause * (0.75 + Math.random() / 2));
        this.pause = Math.min(this.pause * 2, RETRY.longest);
        break;
      }
      this.pause = RETRY.first;
    }
  }

  // Returns whether the act is done, so that it is not sent again.
  async sendOne(act) {
    let answer;
    try {
      answer = await request("POST", act.path, act.body, this.annotator);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      this.sendError = { kind: "unreachable", sentence: t("No connection") };
      return false;
    }
    const { status, data } = answer;
    if (status === 200 && data.saved === true) {
      this.sendError = null;
      await this.settled();
      this.remove(act.id);
      this.saved(act, data);
      return true;
    }
    if (status === 401 || status === 403) {
      this.sendError = { kind: status === 401 ? "signed-out" : "somebody-else", sentence: data.error };
      if (status === 403) this.turnedAway();
      return false;
    }
    if (status < 400 || status >= 500 || status === 408 || status === 429) {
      this.sendError = { kind: "server", sentence: data.error || t("The server answered {status}", { status }) };
      return false;
    }
    this.sendError = null;
    this.refuse(act, data.error);
    return true;
  }

  refuse(act, sentence) {
    const undo = this.waiting.find((each) => each.body.replaces === act.id && each.path.endsWith("/undo"));
    if (undo) {
      // The annotator has already undone it.
      this.remove(undo.id);
      this.remove(act.id);
      return;
    }
    act.refused = sentence;
    this.store(act);
    this.changed();
  }
}
