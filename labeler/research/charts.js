// One cursor through every chart of a group, and the values under it.
const hide = (group) => {
  group.querySelectorAll(".ks-cursor").forEach((node) => node.remove());
};

const nearest = (steps, step) => {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
};

const show = (group, share) => {
  hide(group);
  const low = +group.dataset.low, high = +group.dataset.high;
  const step = low + share * (high - low);
  group.querySelectorAll(".ks-canvas").forEach((canvas) => {
    const series = JSON.parse(canvas.dataset.series).filter((s) => s.x.length);
    if (!series.length) return;
    // Series of one chart need not have the same steps: the cursor stands on the nearest of any.
    const at = series
      .map((s) => s.x[nearest(s.x, step)])
      .reduce((best, x) => (Math.abs(x - step) < Math.abs(best - step) ? x : best));
    const left = (100 * (at - low)) / (high - low);
    const cursor = document.createElement("div");
    cursor.className = "ks-cursor" + (left > 60 ? " ks-flip" : "");
    cursor.style.left = left + "%";
    const tip = document.createElement("div");
    tip.className = "ks-tip";
    tip.append(`${group.dataset.unit} ${at}`);
    series.forEach((s, i) => {
      const index = nearest(s.x, at);
      if (s.x[index] !== at) return;
      const value = s.y[index];
      const row = document.createElement("div");
      row.className = "ks-key ks-s" + i;
      row.append(document.createElement("i"), (series.length > 1 ? s.name + " " : "") + (value ?? "–"));
      tip.append(row);
    });
    cursor.append(tip);
    canvas.append(cursor);
  });
};

const groups = () => [...element.querySelectorAll(".ks-charts")];
let pointed = null;  // which group the pointer is in, and how far along its x-axis

element.addEventListener("pointermove", (event) => {
  const canvas = event.target.closest(".ks-canvas");
  if (!canvas) return;
  const box = canvas.getBoundingClientRect();
  const group = canvas.closest(".ks-charts");
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  pointed = { index: groups().indexOf(group), share };
  show(group, share);
});
element.addEventListener("pointerleave", () => {
  pointed = null;
  groups().forEach(hide);
});
// New numbers redraw the charts; the cursor stays under a pointer that rests.
new MutationObserver(() => {
  const group = pointed && groups()[pointed.index];
  if (group && !group.querySelector(".ks-cursor")) show(group, pointed.share);
}).observe(element, { childList: true, subtree: true });
