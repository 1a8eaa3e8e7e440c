// Texts in the annotator's language.  Each is written in English where it is used, and its English form
// is its name in the catalogs of other languages (`labeler/locales/`).  A text without a translation
// stays English.

const language = chosenLanguage() ?? browserLanguage();
const catalog = loadCatalog();
const plurals = new Intl.PluralRules(language);

// The cookie of the account pages, so that both are in one language.
function chosenLanguage() {
  const [, chosen] = /(?:^|; )kitestring_language=(\w+)/.exec(document.cookie) ?? [];
  return chosen === "en" || chosen in CATALOGS ? chosen : null;
}

function browserLanguage() {
  const wanted = navigator.languages.map((tag) => tag.toLowerCase().split("-")[0]);
  return wanted.find((tag) => tag === "en" || tag in CATALOGS) ?? "en";
}

// The copy in this browser, so that a reload needs no connection.  Other scripts use texts while they
// load, so the first request for a catalog is synchronous; it happens once per version.
function loadCatalog() {
  if (!(language in CATALOGS)) return {};
  const name = `${language} ${CATALOGS[language]}`;
  let kept = {};
  try {
    kept = JSON.parse(recall("texts")) ?? {};
  } catch {
    // unreadable: the catalog is loaded again
  }
  if (kept.name === name) return kept.texts;
  try {
    const request = new XMLHttpRequest();
    request.open("GET", `/label/api/texts/${language}`, false);
    request.send();
    const texts = JSON.parse(request.responseText);
    if (request.status !== 200) throw new Error(texts.error);
    remember("texts", JSON.stringify({ name, texts }));
    return texts;
  } catch {
    return kept.name?.startsWith(`${language} `) ? kept.texts : {}; // no connection: an older copy, or English
  }
}

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

function t(text, values = {}) {
  return fill(catalog[text] ?? text, values);
}

// A text with a number, in English `one` or `other`; a catalog has a form for each of the language's
// plural categories under the name of `other`.
function tn(count, one, other, values = {}) {
  const forms = catalog[other] ?? { one, other };
  const category = catalog[other] || language === "en" ? plurals.select(count) : count === 1 ? "one" : "other";
  return fill(forms[category] ?? forms.other, { count, ...values });
}

// Digits as in the counts, which are plain numbers: a bare "ar" may have others.
const numbers = `${language}-u-nu-latn`;
const percentage = new Intl.NumberFormat(numbers, { style: "percent", maximumFractionDigits: 0 });

// The texts and labels of the page's markup.
function translateMarkup(root) {
  const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = nodes.currentNode;
    const text = node.data.trim();
    if (text in catalog && !node.parentElement?.closest("kbd")) node.data = node.data.replace(text, () => catalog[text]);
  }
  for (const node of root.querySelectorAll("[aria-label], [placeholder], [title]")) {
    for (const name of ["aria-label", "placeholder", "title"]) {
      if (node.hasAttribute(name)) node.setAttribute(name, t(node.getAttribute(name)));
    }
  }
  for (const template of root.querySelectorAll("template")) translateMarkup(template.content);
}

document.documentElement.lang = language;
// On the desk too: Gradio sets a direction on a box between them.
for (const node of [document.documentElement, element.querySelector(".desk")]) node.dir = language === "ar" ? "rtl" : "ltr";
translateMarkup(element);
