// The command palette (Ctrl+K, or Cmd+K) and the list of keys (?) of the research page.  Pages and
// sections come from the navigation, runs from the server, and actions from the Overview page's buttons.
// Names of runs are untrusted: they are only ever set as text.
(() => {
  const MOST = 60; // entries shown
  const RECENT = 5; // runs shown before anything is typed
  const STAGES = { sft: "SFT", sampling: "Sampling", reward: "Reward model", policy: "Policy", evaluate: "Evaluation" };
  const KEYS = [
    ["Everywhere", [["Ctrl K|⌘ K", "Search pages, runs and actions"], ["?", "Show the keys"], ["Esc", "Close a dialog"]]],
    ["On a chart", [["← →", "Move the cursor"], ["+ −", "Zoom"], ["0", "Reset the zoom"]]],
    ["On charts of one run", [["Shift ← →", "Move the cursor ten points"], ["Home End", "First or last point"], ["Esc", "Hide the cursor"]]],
    ["Playground", [["Ctrl Enter|⌘ Enter", "Generate"]]],
  ];
  const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
  document.documentElement.toggleAttribute("data-mac", isMac);
  const { make, ask } = window.ksRequests;

  const palette = make("dialog", "ks-dialog ks-palette");
  palette.setAttribute("aria-label", "Command palette");
  palette.innerHTML = `<input type="text" role="combobox" aria-expanded="true" aria-controls="ks-commands" aria-autocomplete="list"
      aria-label="Search pages, runs and actions" placeholder="Search pages, runs and actions" autocomplete="off" spellcheck="false" dir="auto">
    <ul id="ks-commands" role="listbox" aria-label="Results"></ul><p class="ks-detail" role="status"></p>`;
  const [input, list, status] = ["input", "ul", "p"].map((name) => palette.querySelector(name));
  let runs = []; // of /research/api/runs, the newest first
  let shown = []; // entries: {kind, name, detail, act}
  let active = 0;

  const press = (link) => () => link.click(); // address.js opens the section

  function places() {
    const sections = [...document.querySelectorAll(".ks-section-links a")];
    const pages = [...document.querySelectorAll(".ks-page-links a")];
    return pages.flatMap((page) => {
      const name = page.textContent.trim();
      const inside = sections.filter((link) => link.closest("nav").dataset.page === new URLSearchParams(page.search).get("tab"));
      return [
        { kind: "Page", name, act: press(page) },
        ...inside.map((link) => ({ kind: "Section", name: `${name}: ${link.textContent.trim()}`, act: press(link) })),
      ];
    });
  }

  // Whether a button of the Overview page can be pressed, on this page or once that page is open.
  const possible = (button) => !button.disabled && getComputedStyle(button).display !== "none";
  const isShown = (button) => button.getClientRects().length > 0;
  const overviewButtons = () => [...document.querySelectorAll(".ks-action-bar button")].filter(possible);

  function actions() {
    const overview = document.querySelector(".ks-section-links a");
    return overviewButtons().map((button) => ({
      kind: "Action",
      name: button.textContent.trim(),
      act: () => {
        if (!isShown(button)) overview.click();
        pressOnceShown(button.id);
      },
    }));
  }

  function pressOnceShown(id, tries = 100) {
    const button = overviewButtons().find((each) => each.id === id);
    if (button && isShown(button)) {
      button.focus();
      button.click();
    } else if (tries) setTimeout(() => pressOnceShown(id, tries - 1), 50);
  }

  function recent() {
    return runs.map((run) => {
      const called = `${run.method || STAGES[run.stage]} · iteration ${run.iteration}`;
      const href = `/research/?${new URLSearchParams({ tab: "runs", run: run.id })}`;
      return { kind: "Run", name: run.name || called, detail: `${run.id} · ${run.status}`, act: () => location.assign(href) };
    });
  }

  function others() {
    const themes = ["system", "light", "dark"].map((theme) => ({
      kind: "Theme", name: `Theme: ${theme}`, act: () => window.kitestringTheme.choose(theme),
    }));
    return [...themes, { kind: "Help", name: "Keyboard shortcuts", act: showKeys }];
  }

  // How well `text` has the letters of `word` in their order: less is better; null if it has not.
  function distance(word, text) {
    const at = text.indexOf(word);
    if (at >= 0) return at === 0 || /[^\p{L}\p{N}]/u.test(text[at - 1]) ? 0 : 1;
    let from = -1, gaps = 0;
    for (const letter of word) {
      const next = text.indexOf(letter, from + 1);
      if (next < 0) return null;
      if (from >= 0) gaps += next - from - 1;
      from = next;
    }
    return gaps <= 2 * word.length ? 2 + gaps : null;
  }

  function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [...actions(), ...places(), ...recent().slice(0, RECENT), ...others()];
    const ranked = [];
    for (const entry of [...actions(), ...places(), ...recent(), ...others()]) {
      const text = `${entry.name} ${entry.detail ?? ""}`.toLowerCase();
      const distances = words.map((word) => distance(word, text));
      if (!distances.includes(null)) ranked.push([distances.reduce((a, b) => a + b), entry]);
    }
    return ranked.sort((a, b) => a[0] - b[0]).slice(0, MOST).map(([, entry]) => entry);
  }

  function show() {
    shown = search();
    list.replaceChildren(...shown.map((entry, i) => {
      const option = make("li");
      option.id = `ks-command-${i}`;
      option.role = "option";
      const name = make("span", "ks-name", entry.name);
      name.dir = "auto";
      option.append(name, ...(entry.detail ? [make("small", "", entry.detail)] : []), make("small", "ks-kind", entry.kind));
      option.onclick = () => run(entry);
      option.onpointermove = () => activate(i);
      return option;
    }));
    status.textContent = shown.length ? "" : "Nothing matches.";
    activate(0);
  }

  function activate(i) {
    active = i;
    [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === i)));
    const option = list.children[i];
    if (!option) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  function run(entry) {
    palette.close();
    entry.act();
  }

  const same = (one, other) => ["kind", "name", "detail"].every((part) => one[part] === other[part]);

  async function loadRuns() {
    try {
      runs = (await ask("runs")).runs;
    } catch (error) {
      if (palette.open) status.textContent = `Runs could not be loaded. ${error.message}`;
      return;
    }
    if (!palette.open) return;
    const chosen = shown[active];
    show();
    activate(Math.max(0, shown.findIndex((entry) => chosen && same(entry, chosen))));
  }

  function open() {
    if (document.querySelector("dialog[open]")) return;
    if (!palette.isConnected) document.body.append(palette);
    input.value = "";
    palette.showModal(); // focus goes to the field, and back when it is closed
    show();
    loadRuns();
  }

  input.oninput = show;
  input.onkeydown = (event) => {
    if (event.isComposing || !shown.length) return;
    const last = shown.length - 1;
    const to = {
      ArrowDown: active === last ? 0 : active + 1, ArrowUp: active === 0 ? last : active - 1,
      PageDown: Math.min(last, active + 8), PageUp: Math.max(0, active - 8),
    }[event.key];
    if (to !== undefined) activate(to);
    else if (event.key === "Enter") run(shown[active]);
    else return;
    event.preventDefault();
  };
  palette.onclick = (event) => {
    if (event.target === palette) palette.close(); // the backdrop
  };

  const help = make("dialog", "ks-dialog ks-keys");
  help.setAttribute("aria-labelledby", "ks-keys-title");

  function showKeys() {
    if (document.querySelector("dialog[open]")) return;
    const title = Object.assign(make("h2", "", "Keyboard shortcuts"), { id: "ks-keys-title" });
    const close = Object.assign(make("button", "ks-button", "Close"), { type: "button", onclick: () => help.close() });
    const foot = make("div", "ks-actions");
    foot.append(close);
    help.replaceChildren(title, ...KEYS.flatMap(([where, keys]) => [make("h3", "", where), table(keys)]), foot);
    if (!help.isConnected) document.body.append(help);
    help.showModal();
  }

  function table(keys) {
    const made = make("dl");
    for (const [names, does] of keys) {
      const term = make("dt");
      term.append(...names.split("|").at(isMac ? -1 : 0).split(" ").map((key) => make("kbd", "", key)));
      made.append(term, make("dd", "", does));
    }
    return made;
  }

  help.onclick = (event) => {
    if (event.target === help) help.close();
  };

  const types = (target) => target instanceof Element && target.closest("input, textarea, select, [contenteditable=''], [contenteditable=true]");
  document.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
    if (event.defaultPrevented || event.isComposing || altKey) return;
    const onlyCommand = isMac ? metaKey && !ctrlKey : ctrlKey && !metaKey;
    if (key.toLowerCase() === "k" && onlyCommand && !shiftKey) {
      event.preventDefault(); // some browsers open their search
      if (palette.open) palette.close();
      else open();
    } else if (key === "?" && !ctrlKey && !metaKey && !types(event.target)) {
      event.preventDefault();
      showKeys();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-palette]")) open();
  });
})();
