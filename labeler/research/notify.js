// Shows events in the title and, if the person has turned it on in this browser, as notifications of
// the browser.  The server writes the newest events into #ks-events every few seconds.  The title also
// shows which stage runs, has failed or was cancelled, and until the page is seen, which has finished.
(() => {
  const SEEN = "kitestring-seen"; // the time of the newest event that this browser has shown
  const missed = [];
  const inView = () => !document.hidden && document.hasFocus();
  const prefix = () => {
    const newest = missed.at(-1);
    const parts = [newest && `(${missed.length}) ${newest.title}`, finished, newest && !running ? "" : state];
    return parts.filter(Boolean).map((each) => `${each} · `).join("");
  };
  let shown = "";
  let state = ""; // of the stage, such as "Policy running"
  let finished = ""; // the stage that ended while the page was not in view
  let running = ""; // the state at the last look, if a stage ran then

  function look() {
    const holder = document.querySelector("#ks-state");
    state = holder?.dataset.state ?? "";
    const now = holder?.dataset.running === "true" ? state : "";
    if (now) finished = "";
    else if (running && !state && !inView()) finished = running.replace(/ running$/, " finished");
    running = now;
    retitle();
  }

  // address.js sets the title of the open section; the prefix stays in front of it.
  function retitle() {
    const bare = shown && document.title.startsWith(shown) ? document.title.slice(shown.length) : document.title;
    shown = prefix();
    if (document.title !== shown + bare) document.title = shown + bare;
  }

  function notify({ id, title, text }) {
    const allowed = "Notification" in window && Notification.permission === "granted";
    if (!allowed || localStorage.getItem("kitestring-notify") !== "on") return;
    // Other tabs of this site show the same event: equal tags become one notification.
    const notification = new Notification(title, { body: text, tag: id, icon: "/static/kite.svg" });
    notification.onclick = () => {
      window.focus();
      notification.close();
    };
  }

  function read() {
    const holder = document.querySelector("#ks-events");
    if (!holder) return;
    const events = JSON.parse(holder.dataset.events);
    const newest = Math.max(0, ...events.map((each) => each.at));
    const seen = localStorage.getItem(SEEN);
    localStorage.setItem(SEEN, Math.max(newest, Number(seen ?? 0)));
    if (seen === null) return; // the first visit: nothing is new
    for (const event of events.filter((each) => each.at > Number(mine ?? seen))) {
      if (inView()) continue;
      missed.push(event);
      notify(event);
    }
    mine = Math.max(newest, Number(mine ?? seen));
    retitle();
  }
  let mine = null; // as SEEN, for this tab

  function seen() {
    if (!inView()) return;
    missed.length = 0;
    finished = "";
    retitle();
  }

  addEventListener("focus", seen);
  document.addEventListener("visibilitychange", seen);
  const appearance = new MutationObserver(() => {
    if (!document.querySelector("#ks-events")) return;
    appearance.disconnect();
    read();
    // Gradio replaces the element when its events change.
    new MutationObserver(read).observe(document.querySelector("#events"), { childList: true, subtree: true, attributes: true });
    look();
    new MutationObserver(look).observe(document.querySelector("#top"), { childList: true, subtree: true, attributes: true });
    new MutationObserver(retitle).observe(document.querySelector("title"), { childList: true });
  });
  appearance.observe(document.documentElement, { childList: true, subtree: true });
})();
