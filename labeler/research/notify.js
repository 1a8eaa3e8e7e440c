// Shows events in the title and, if the person has turned it on in this browser, as notifications of
// the browser.  The server writes the newest events into #ks-events every few seconds.
(() => {
  const SEEN = "kitestring-seen"; // the time of the newest event that this browser has shown
  const missed = [];
  const inView = () => !document.hidden && document.hasFocus();
  const prefix = () => {
    const newest = missed.at(-1);
    return newest ? `(${missed.length}) ${newest.title} · ` : "";
  };
  let shown = "";

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
    new MutationObserver(retitle).observe(document.querySelector("title"), { childList: true });
  });
  appearance.observe(document.documentElement, { childList: true, subtree: true });
})();
