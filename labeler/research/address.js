// The navigation: opens the section of a link without loading the site again.  Page, section and run
// are in the address: it can be shared, and the back button works.
(() => {
  const TITLE = "Kitestring";
  const RUNS = "runs"; // the page that shows a run
  const SHOWN = ["iteration", "model", "policy", "find", "stage", "method", "status", "study"]; // what a section shows; another section forgets it
  const COMPARED = "compare"; // its section that shows several
  const query = () => new URLSearchParams(location.search);
  let run = query().get("run") ?? "";
  const lastOpened = {}; // page → the link of its section that was open last

  const pageLinks = () => [...document.querySelectorAll(".ks-page-links a")];
  const sectionLinks = () => [...document.querySelectorAll(".ks-section-links a")];
  const buttons = () => [...document.querySelectorAll("#sections [role=tab]")];
  const name = (button) => button.textContent.trim();
  const selected = () => buttons().find((each) => each.getAttribute("aria-selected") === "true");
  const target = (link) => new URLSearchParams(link.search);
  const same = (link, wanted) =>
    ["tab", "section"].every((each) => (target(link).get(each) ?? "") === (wanted.get(each) ?? ""));
  // The link of a section; a page with one section has only its own.
  const linkOf = (tab) => [...sectionLinks(), ...pageLinks()].find((link) => link.dataset.tab === tab);

  // Shows which page and section are open, and puts them into title and address.
  function show(method) {
    const link = linkOf(name(selected()));
    const page = target(link).get("tab");
    lastOpened[page] = link;
    for (const each of pageLinks()) mark(each, target(each).get("tab") === page);
    for (const each of sectionLinks()) mark(each, each === link);
    for (const row of document.querySelectorAll(".ks-section-links")) row.hidden = row.dataset.page !== page;
    const pageName = pageLinks().find((each) => each.ariaCurrent).textContent;
    document.title = [...new Set([target(link).has("section") ? link.textContent : pageName, pageName, TITLE])].join(" · ");
    write(link, method);
  }

  function mark(link, isCurrent) {
    if (isCurrent) link.ariaCurrent = "page";
    else link.removeAttribute("aria-current");
  }

  function write(link, method) {
    const first = link.dataset.tab === name(buttons()[0]); // needs no name
    const wanted = first ? new URLSearchParams() : target(link);
    const here = same(link, query());
    for (const [key, value] of query()) {
      if (!["tab", "section", "run", "runs"].includes(key) && (here || !SHOWN.includes(key))) wanted.set(key, value);
    }
    if (wanted.get("section") === COMPARED && query().has("runs")) wanted.set("runs", query().get("runs"));
    if (wanted.get("tab") === RUNS && !wanted.has("section") && run) wanted.set("run", run);
    const address = location.pathname + (wanted.size ? `?${wanted}` : "");
    if (address !== location.pathname + location.search) history[method](null, "", address);
  }

  // Opens the section that the address names, or the first one of its page; an unknown name is removed
  // from the address.
  function open() {
    const links = [...sectionLinks(), ...pageLinks()];
    const link = links.find((each) => same(each, query())) ?? links.find((each) => target(each).get("tab") === query().get("tab"));
    const wanted = link ? link.dataset.tab : name(buttons()[0]);
    if (wanted === name(selected())) show("replaceState");
    else press(wanted);
  }

  function press(tab) {
    buttons().find((each) => name(each) === tab).click();
  }

  // `choice` is a run's id, or "latest".
  window.kitestringRun = (choice) => {
    run = choice === "latest" ? "" : choice;
    const link = selected() && linkOf(name(selected()));
    if (link && target(link).get("tab") === RUNS) write(link, "replaceState");
  };

  addEventListener("popstate", () => {
    run = query().get("run") ?? run;
    open();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(":is(.ks-page-links, .ks-section-links) a");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const inRow = link.closest(".ks-section-links");
    press(((!inRow && lastOpened[target(link).get("tab")]) || link).dataset.tab);
  });
  const appearance = new MutationObserver(() => {
    if (!selected() || !pageLinks().length) return;
    appearance.disconnect();
    open();
    // Gradio has selected a tab: a link was followed, or another part of the site asked for it.
    new MutationObserver(() => show("pushState")).observe(document.querySelector("#sections"), {
      subtree: true, attributeFilter: ["aria-selected"],
    });
  });
  appearance.observe(document.documentElement, { childList: true, subtree: true });
})();
