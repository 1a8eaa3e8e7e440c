// Shows the first view in a closed shadow root, where no script of the page finds its elements, and
// removes it when Gradio shows the same section.
((host) => {
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

  // A component for HTML has content, a field has a value.
  const filled = (id) => {
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
    style.remove();
  }
  document.documentElement.dataset.firstView = "";
  look();
})(document.getElementById("first-view"));
