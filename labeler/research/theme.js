// The theme of this browser: light, dark or the system's.  Runs before the first paint (theme.py).
// The annotator's desk keeps its choice under the same name.
window.kitestringTheme = (() => {
  const NAME = "kitestring.theme"; // "light" or "dark"; absent: the system's
  const PAGE = { light: "#f6f6f4", dark: "#12151c" }; // --ks-page, until the style sheet is there
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const system = () => (systemDark.matches ? "dark" : "light");
  const known = (value) => (Object.hasOwn(PAGE, value) ? value : "system");
  let choice = "system";

  function recall() {
    try {
      return known(localStorage.getItem(NAME));
    } catch {
      return choice; // storage is blocked: the choice lasts as long as the page
    }
  }

  function remember() {
    try {
      if (choice === "system") localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, choice);
    } catch {
      // As above.
    }
  }

  function apply() {
    const theme = choice === "system" ? system() : choice;
    root.dataset.theme = choice;
    root.style.colorScheme = theme;
    // The background of Gradio's empty page, for either preference of the system.
    for (const name of ["--bg", "--bg-dark"]) root.style.setProperty(name, PAGE[theme]);
    wear();
  }

  // Gradio sets the class from the system's preference when it starts and when that changes.
  function wear() {
    document.body?.classList.toggle("dark", root.style.colorScheme === "dark");
  }

  function choose(next) {
    choice = known(next);
    remember();
    apply();
  }

  // The switch goes from the system's theme to the opposite first, so that each press but one is seen.
  function next() {
    const order = ["system", ...(systemDark.matches ? ["light", "dark"] : ["dark", "light"])];
    choose(order[(order.indexOf(choice) + 1) % order.length]);
  }

  choice = recall();
  apply();
  systemDark.addEventListener("change", apply);
  addEventListener("storage", (event) => {
    if (event.key !== NAME && event.key !== null) return;
    choice = recall();
    apply();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-theme-switch]")) next();
  });
  new MutationObserver((_changes, appearance) => {
    if (!document.body) return;
    appearance.disconnect();
    wear();
    new MutationObserver(wear).observe(document.body, { attributeFilter: ["class"] });
  }).observe(root, { childList: true });
  return { choose, choice: () => choice };
})();
