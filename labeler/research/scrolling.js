// Boxes that scroll: a box with nothing to focus gets a tab stop while it is too small for what it
// holds, so that the arrow keys scroll it. The row of sections shows the one that is open.
(() => {
  const BOXES = ".ks-scroll, .st-figure, .ks-side, .ks-pre, .ks-sample > header > div, .ks-listed";
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
  const scrolls = (box) => box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1;

  const sizes = new ResizeObserver(later); // a box of a page that opens has no size before
  function update() {
    for (const box of document.querySelectorAll(BOXES)) {
      sizes.observe(box);
      const wanted = scrolls(box) && !box.querySelector(CONTROLS);
      if (wanted !== box.hasAttribute("tabindex")) box.toggleAttribute("tabindex", wanted);
      if (wanted) box.tabIndex = 0;
    }
  }

  function showSection() {
    const row = document.querySelector(".ks-section-links:not([hidden])");
    const link = row?.querySelector("[aria-current]");
    if (link) row.scrollLeft = link.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
  }

  let waits = false;
  function later() {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      update();
    });
  }

  new MutationObserver((changes) => {
    later();
    if (changes.some((each) => each.attributeName === "aria-current")) showSection();
  }).observe(document.documentElement, {
    subtree: true, childList: true, attributeFilter: ["aria-current", "aria-selected", "open"],
  });
})();
