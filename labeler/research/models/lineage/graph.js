// Marks what shaped a node and what it shaped, while it has the pointer or the focus, and the model that
// the address names.
const near = (id, from, to) => {
  const found = new Set([id]), lines = [...element.querySelectorAll("path")];
  for (let more = true; more; ) {
    more = false;
    for (const { dataset } of lines) {
      if (found.has(dataset[from]) && !found.has(dataset[to])) more = Boolean(found.add(dataset[to]));
    }
  }
  return found;
};

function mark(id) {
  const graph = element.querySelector(".lg");
  if (!graph) return;
  graph.classList.toggle("lg-some", Boolean(id));
  const before = id ? near(id, "target", "source") : new Set(), after = id ? near(id, "source", "target") : new Set();
  for (const each of graph.querySelectorAll("[data-node]")) {
    each.classList.toggle("lg-on", before.has(each.dataset.node) || after.has(each.dataset.node));
  }
  for (const each of graph.querySelectorAll("path")) {
    const { source, target } = each.dataset;
    each.classList.toggle("lg-on", (before.has(source) && before.has(target)) || (after.has(source) && after.has(target)));
  }
}

const wanted = () => {
  const query = new URLSearchParams(location.search);
  return query.get("section") === "lineage" ? query.get("model") : null;
};
const nodeOf = (event) => event.target.closest?.("[data-node]")?.dataset.node;
element.addEventListener("pointerover", (event) => mark(nodeOf(event) ?? wanted()));
element.addEventListener("pointerleave", () => mark(wanted()));
element.addEventListener("focusin", (event) => mark(nodeOf(event)));
element.addEventListener("focusout", () => mark(wanted()));
let shown = "";
new MutationObserver(() => {
  const id = wanted();
  for (const each of element.querySelectorAll("[data-node]")) {
    if (each.dataset.node === id) each.setAttribute("aria-current", "true");
  }
  mark(id);
  if (id && shown !== id) {
    shown = id;
    element.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
  }
}).observe(element, { childList: true, subtree: true });
