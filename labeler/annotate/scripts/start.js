// Preferences of this browser, then the first requests.

function remember(name, value, storage = "localStorage") {
  try {
    window[storage].setItem(`kitestring.${name}`, value);
  } catch {
    // Private mode: the choice lasts as long as the page.
  }
}

function recall(name, storage = "localStorage") {
  try {
    return window[storage].getItem(`kitestring.${name}`);
  } catch {
    return null;
  }
}

// The desk has only the two themes; until somebody presses the switch, it follows the system.
function setTheme(theme) {
  window.kitestringTheme.choose(theme);
}

const SIZES = [0.875, 1, 1.125, 1.25, 1.5, 1.75]; // of the text of prompts, responses and guidelines

function setTextSize(size) {
  $(".desk").style.setProperty("--text-size", size);
  $(".sizes output").textContent = percentage.format(size);
  remember("text-size", size);
  for (const button of $$("[data-size]")) {
    const next = SIZES[SIZES.indexOf(size) + Number(button.dataset.size)];
    button.disabled = next === undefined;
    button.onclick = () => setTextSize(next);
  }
}

// The server keeps the choice for the person, and sets the cookie for the next load.
function offerLanguages(person) {
  const select = $(".language select");
  const options = Object.entries(LANGUAGES).map(([tag, name]) => new Option(name, tag, false, tag === language));
  for (const option of options) option.lang = option.value;
  select.replaceChildren(...options);
  select.onchange = async () => {
    let problem = t("No connection: the language is unchanged.");
    try {
      const { status, data } = await request("POST", "/label/api/language", { language: select.value }, person.id);
      if (status === 200) return location.reload();
      problem = t(data.error);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
    }
    select.value = language;
    $(".menu [role=status]").textContent = problem;
  };
}

// Whether the person chose another language, in another browser: the page is loaded again in it.
function speaksAnother({ language: chosen }) {
  if (!chosen || chosen === language) return false;
  document.cookie = `kitestring_language=${chosen}; path=/; max-age=31536000; samesite=lax`;
  if (chosenLanguage() !== chosen) return false; // cookies are off
  location.reload();
  return true;
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
  if (speaksAnother(annotator)) return;
  offerLanguages(annotator);
  forgetAtSignOut(copy);
  let desk = null;
  const tabs = new Tabs(annotator.id, {
    enter: async () => {
      await tabs.caughtUp();
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

window.kitestringTheme.onChange((theme) => { $(".desk").dataset.theme = theme; });
setTextSize(SIZES.find((size) => String(size) === recall("text-size")) ?? 1);
$(".skip").onclick = (event) => {
  event.preventDefault();
  jumpToResponses();
};
const sides = new Sides();
showState("loading");
showIdle("loading", 0);
start();
