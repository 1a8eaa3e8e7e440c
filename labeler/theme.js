// The theme of this browser: light, dark or the system's.  Runs before the first paint (theme.py).
// The cookie alone says which: the server reads it, too.
window.kitestringTheme = (() => {
  const NAME = "kitestring_theme"; // "light" or "dark"; absent: the system's
  const FORMER = "kitestring.theme"; // where earlier versions kept it, in localStorage
  const YEAR = 31_536_000;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const listeners = new Set();
  const known = (value) => (["light", "dark"].includes(value) ? value : "system");
  let choice = "system";

  // The first cookie of this name, as the server does it.  "" is no cookie.
  function cookie() {
    const found = document.cookie.split(";").map((part) => part.trim()).find((part) => part.startsWith(`${NAME}=`));
    return found ? found.slice(NAME.length + 1) : "";
  }

  function remember() {
    const age = choice === "system" ? 0 : YEAR;
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `${NAME}=${choice}; path=/; max-age=${age}; samesite=lax${secure}`;
  }

  function former() {
    try {
      const found = localStorage.getItem(FORMER);
      localStorage.removeItem(FORMER);
      return known(found);
    } catch {
      return "system"; // storage is blocked
    }
  }

  const shown = () => (choice === "system" ? (systemDark.matches ? "dark" : "light") : choice);

  function apply() {
    root.dataset.theme = choice;
    wear();
    for (const listener of listeners) listener(shown());
  }

  // Gradio sets the class from the system's preference when it starts and when that changes.
  function wear() {
    document.body?.classList.toggle("dark", shown() === "dark");
  }

  const others = "BroadcastChannel" in window ? new BroadcastChannel(NAME) : null;

  function choose(next) {
    choice = known(next);
    remember();
    apply();
    others?.postMessage(choice);
  }

  // The switch goes from the system's theme to the opposite first, so that each press but one is seen.
  function next() {
    const order = ["system", ...(systemDark.matches ? ["light", "dark"] : ["dark", "light"])];
    choose(order[(order.indexOf(choice) + 1) % order.length]);
  }

  function recall() {
    const found = known(cookie());
    if (found === choice) return;
    choice = found;
    apply();
  }

  const kept = former();
  choice = known(cookie());
  if (!cookie() && kept !== "system") {
    choice = kept;
    remember();
  }
  apply();
  systemDark.addEventListener("change", apply);
  if (others) others.onmessage = ({ data }) => {
    choice = known(data);
    apply();
  };
  // Another program of this host, or a page that was kept in memory.
  addEventListener("pageshow", (event) => {
    if (event.persisted) recall();
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
  return {
    choose,
    choice: () => choice,
    shown,
    onChange: (listener) => {
      listeners.add(listener);
      listener(shown());
    },
  };
})();
