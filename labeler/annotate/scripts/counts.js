// The annotator's counts.  They come from the server, which takes long to count; between its answers
// the page adds its own acts.

const REFRESH = 60000; // milliseconds between requests for the counts

class Counts {
  // `waiting()` says whether acts are unsent; `changed()` is called after every change.
  constructor(annotator, progress, { waiting, changed }) {
    this.annotator = annotator;
    this.progress = progress;
    this.waiting = waiting;
    this.changed = changed;
    this.stale = false; // whether only the server knows the counts
    this.acts = 0; // saved acts, to notice answers that were counted before the latest of them
  }

  count(progress) {
    this.progress = { ...this.progress, ...progress };
    showProgress(this.progress);
    this.changed();
  }

  // An act of an earlier page may have been stored before the server counted for this page: its reply
  // was lost.  After an undo, only the server knows which act is the latest.
  saved(act, data) {
    this.acts += 1;
    if (act.earlier || data.undone) this.stale = true;
    this.count({ ...(act.earlier ? {} : this.counted(act, data)), latest: data.undone ? null : act.id });
    if (this.stale) this.refresh();
  }

  counted(act, { undone }) {
    if (act.path.endsWith("/judgments") && act.body.replaces) return {}; // counted before the revision
    const judged = (undone ? undone.kind === "judgment" : act.path.endsWith("/judgments")) ? 1 : 0;
    const sign = undone ? -1 : 1;
    const queued = act.note.live ? 0 : 1; // live turns are not in the queue, and its round
    const { judged: all, today, remaining, done } = this.progress;
    return {
      judged: all + sign * judged,
      done: Math.max(0, done + sign * judged * queued),
      today: Math.max(0, today + sign * judged),
      remaining: Math.max(0, remaining - sign * queued),
    };
  }

  // Unsent acts would be missing from the answer.
  async refresh() {
    if (document.hidden || this.waiting()) return;
    const before = this.acts;
    let answer;
    try {
      answer = await request("GET", byOwnDay("/label/api/progress"), null, this.annotator);
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
      return;
    }
    if (answer.status !== 200 || this.waiting()) return;
    if (before !== this.acts) return this.refresh();
    this.stale = false;
    this.count(answer.data);
  }
}
