// Preferences of this browser, then the first requests.

function remember(name, value) {
  try {
    localStorage.setItem(`kitestring.${name}`, value);
  } catch {
    // Private mode: the choice lasts as long as the page.
  }
}

function recall(name) {
  try {
    return localStorage.getItem(`kitestring.${name}`);
  } catch {
    return null;
  }
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function followTheSystem() {
  $(".desk").dataset.theme = systemDark.matches ? "dark" : "light";
}

// A choice made on this page stays when the system's theme changes.
function setTheme(theme) {
  systemDark.removeEventListener("change", followTheSystem);
  $(".desk").dataset.theme = theme;
  document.body.classList.toggle("dark", theme === "dark");
  document.body.classList.toggle("kite-light", theme === "light");
  remember("theme", theme);
}

const SIZES = [0.875, 1, 1.125, 1.25, 1.5, 1.75]; // of the text of prompts, responses and guidelines

function setTextSize(size) {
  $(".desk").style.setProperty("--text-size", size);
  $(".sizes output").textContent = `${Math.round(size * 100)}%`;
  remember("text-size", size);
  for (const button of $$("[data-size]")) {
    const next = SIZES[SIZES.indexOf(size) + Number(button.dataset.size)];
    button.disabled = next === undefined;
    button.onclick = () => setTextSize(next);
  }
}

// {annotator, progress}: each annotator has their own outbox.  Without a connection, it is whoever
// used the desk last; the server checks that with every request.
async function whoIsHere(last) {
  let pause = 500;
  for (;;) {
    try {
      const timeout = last ? QUICK : undefined;
      const { status, data } = await request("GET", byOwnDay("/label/api/progress"), null, null, timeout);
      if (status === 200) {
        const { annotator, ...progress } = data;
        return { annotator, progress };
      }
      if (status === 401) {
        location.assign("/sign-in?next=/label/");
        return new Promise(() => {});
      }
    } catch (problem) {
      if (!(problem instanceof Unreachable)) throw problem;
    }
    if (last) return last;
    showIdle("unreachable", 0);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 5000);
  }
}

async function start() {
  const copy = new OfflineCopy();
  const { annotator, progress } = await whoIsHere(await copy.read());
  await copy.keepPerson(annotator, progress);
  forgetAtSignOut(copy);
  let desk = null;
  const tabs = new Tabs(annotator.id, {
    enter: async () => {
      const copied = (await copy.read())?.pairs || [];
      if (!tabs.has) return; // taken over meanwhile
      if (desk) desk.enter(copied);
      else desk = new Desk(annotator, progress, copy, copied);
      desk.loadGuidelines();
    },
    leave: () => desk?.leave(),
  });
  tabs.run();
  keepPage();
}

function forgetAtSignOut(copy) {
  const form = $("form[action='/sign-out']");
  form.onsubmit = async (event) => {
    event.preventDefault();
    const forgotten = Promise.allSettled([copy.clear(), forgetPage()]);
    await Promise.race([forgotten, new Promise((resolve) => setTimeout(resolve, 1000))]);
    form.submit();
  };
}

followTheSystem();
systemDark.addEventListener("change", followTheSystem);
const remembered = recall("theme");
if (remembered) setTheme(remembered);
setTextSize(SIZES.find((size) => String(size) === recall("text-size")) ?? 1);
$(".skip").onclick = (event) => {
  event.preventDefault();
  jumpToResponses();
};
const sides = new Sides();
showState("loading");
showIdle("loading", 0);
start();
