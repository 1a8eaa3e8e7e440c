// Shows the first view in a closed shadow root, where no script of the page finds its elements, and
// removes it when Gradio shows the same section.
//
// `scripts` are the scripts of sections that fill their elements by themselves, by element id.  They
// run here, and Gradio's page takes their elements over.
((host, scripts) => {
  const LONGEST = 6000; // ms after Gradio has opened the section; then it is shown as it is
  const source = document.getElementById("first-view-content");
  const style = document.getElementById("first-view-style");
  const wanted = JSON.parse(host.dataset.filled); // ids of components that the first view has filled
  const root = host.attachShadow({ mode: "closed" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style.textContent);
  root.adoptedStyleSheets = [sheet];
  root.append(source.content);
  source.remove();
  for (const drawing of root.querySelectorAll("[data-for]")) drawing.hidden = drawing.dataset.for !== document.documentElement.dataset.theme;

  // id → the element that a script fills, and its place in Gradio's page once that is there
  const scripted = new Map();
  for (const [id, fill] of Object.entries(scripts)) {
    const element = document.createElement("div");
    root.getElementById(id).querySelector(".html-container > div").replaceChildren(element);
    scripted.set(id, { element, place: null });
    fill(element);
  }
  const move = ({ element, place }) => place?.replaceChildren(element);
  window.ksFirstView = {
    // Gives `place` the element when the first view ends.  False if no script ran here.
    give(id, place) {
      const found = scripted.get(id);
      if (!found) return false;
      found.place = place;
      if (!host.isConnected) move(found);
      return true;
    },
  };

  // A component for HTML has content, a field has a value.
  const filled = (id) => {
    if (scripted.has(id)) return scripted.get(id).place;
    const part = document.getElementById(id);
    return part?.querySelector(":scope > .html-container > div")?.hasChildNodes() || part?.querySelector("textarea, input")?.value;
  };
  const opened = () => document.querySelector("#sections [role=tab][aria-selected=true]")?.textContent.trim() === host.dataset.section;
  let since = null;
  function look() {
    if (opened()) since ??= performance.now();
    const done = since !== null && (wanted.every(filled) || performance.now() - since > LONGEST);
    if (!done) return requestAnimationFrame(look);
    document.documentElement.removeAttribute("data-first-view");
    host.remove();
    scripted.forEach(move);
    style.remove();
  }
  document.documentElement.dataset.firstView = "";
  look();
})(document.getElementById("first-view"), {/* scripts */});
