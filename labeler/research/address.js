// The open tab and the run are in the address: it can be shared, and the back button works.
(() => {
  const TITLE = "Kitestring";
  const RUNS = "training"; // the tab that shows a run
  let run = new URLSearchParams(location.search).get("run") ?? "";

  const tabs = () => [...document.querySelectorAll("#tabs [role=tab]")];
  const slug = (tab) => tab.textContent.trim().toLowerCase().replaceAll(" ", "-");
  const selected = () => tabs().find((tab) => tab.getAttribute("aria-selected") === "true");
  // The first tab needs no name.
  const named = (tab) => (tab === tabs()[0] ? "" : slug(tab));
  const wanted = () => new URLSearchParams(location.search).get("tab") ?? "";

  function write(tab, method) {
    const query = new URLSearchParams(location.search);
    query.delete("tab");
    query.delete("run");
    if (tab) query.set("tab", tab);
    if (tab === RUNS && run) query.set("run", run);
    const address = location.pathname + (query.size ? `?${query}` : "");
    if (address !== location.pathname + location.search) history[method](null, "", address);
  }

  // Gradio has selected a tab: the person did, the back button, or another part of the page.
  function follow() {
    const tab = selected();
    if (!tab) return;
    document.title = `${tab.textContent.trim()} · ${TITLE}`;
    write(named(tab), "pushState");
  }

  function open() {
    const tab = tabs().find((each) => named(each) === wanted());
    if (tab && tab !== selected()) tab.click();
    else follow(); // an unknown name is removed
  }

  // `choice` is a run's id, or "latest".
  window.kitestringRun = (choice) => {
    run = choice === "latest" ? "" : choice;
    if (selected() && slug(selected()) === RUNS) write(RUNS, "replaceState");
  };

  addEventListener("popstate", open);
  const appearance = new MutationObserver(() => {
    const row = document.querySelector("#tabs");
    if (!row || !selected()) return;
    appearance.disconnect();
    open();
    new MutationObserver(follow).observe(row, { subtree: true, attributeFilter: ["aria-selected"] });
  });
  appearance.observe(document.documentElement, { childList: true, subtree: true });
})();
