// A section that shows what the address names: once it has content, it asks for it (`fromAddress`).
function fromAddress(page, section, name, content) {
  const query = new URLSearchParams(location.search);
  const wanted = query.get(name);
  if (!wanted || query.get("tab") !== page || (query.get("section") ?? "") !== section) return;
  const ask = () => {
    // Not the whole component: while it loads, Gradio shows the seconds in it.
    if (!document.querySelector(`${content} .html-container`)?.textContent.trim()) return false;
    trigger("act", { action: name, id: wanted });
    return true;
  };
  if (ask()) return;
  const appearance = new MutationObserver(() => {
    if (ask()) appearance.disconnect();
  });
  appearance.observe(document.body, { childList: true, subtree: true });
}
