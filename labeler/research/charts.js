// Draws the charts of a component with uPlot, with a shared cursor, zoom, smoothing and log scale.
const sync = uPlot.sync(`charts-${Math.random()}`);
const plots = new Map(); // box → its plot
let zoom = null; // {min, max} of the x-axis
let pointed = null; // x under the cursor

const tools = document.createElement("div");
tools.className = "ks-tools";
tools.hidden = true;
tools.innerHTML = `<label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value="0">
  <output>0</output></label>
  <label><input type="checkbox"> Log scale</label>
  <button type="button" class="ks-button" disabled>Reset zoom</button>
  <span class="ks-detail">Drag to zoom; double-click to reset. Keys: ← → move, + − zoom, 0 resets.</span>`;
const [slider, log] = tools.querySelectorAll("input");
const reset = tools.querySelector("button");
element.before(tools);

const { font, color, number, smooth, beyond, yRange, logRange, logTicks, logTexts, axis, write } = window.ksPlotting;

// Limits beyond the axis, as texts at its ends.
const drawBeyond = ({ ctx, bbox, scales }, limits) => {
  const { above, below } = beyond(limits, scales.y);
  const right = bbox.left + bbox.width - 4 * devicePixelRatio, space = 3 * devicePixelRatio;
  ctx.fillStyle = color("--ks-soft");
  ctx.textAlign = "right";
  for (const [limit, arrow, y, baseline] of [[above, "↑", bbox.top + space, "top"], [below, "↓", bbox.top + bbox.height - space, "bottom"]]) {
    if (!limit) continue;
    ctx.textBaseline = baseline;
    ctx.fillText(`${limit.label} ${arrow}`, right, y);
  }
};

const drawLimits = (limits) => (plot) => {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color("--ks-bad");
  ctx.lineWidth = 1.25 * devicePixelRatio;
  ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.font = font().replace("11px", `${11 * devicePixelRatio}px`);
  const { min, max } = plot.scales.y;
  for (const { value, label } of limits.filter(({ value }) => value >= min && value <= max)) {
    const y = plot.valToPos(value, "y", true);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.textAlign = "left";
    const below = y - bbox.top < 18 * devicePixelRatio;
    ctx.textBaseline = below ? "top" : "bottom";
    ctx.fillText(label, bbox.left + 6 * devicePixelRatio, y + (below ? 4 : -3) * devicePixelRatio);
  }
  drawBeyond(plot, limits);
  ctx.restore();
};

// Shows the values at the cursor, or the last ones without a cursor.
const readOut = (figure, unit, shown) => (plot) => {
  const { idx, left } = plot.cursor;
  const at = idx !== null && idx !== undefined && left >= 0 ? idx : null;
  if (at !== null) pointed = plot.data[0][at];
  write(figure.querySelector(".ks-at"), at === null ? "" : `${unit} ${number(plot.data[0][at], 6)}`);
  figure.querySelectorAll(".ks-key em").forEach((key, i) => {
    const values = plot.data[shown(i)];
    write(key, number(at === null ? values.findLast((v) => v !== null && v !== undefined) : values[at], 3));
  });
};

const draw = (box) => {
  const figure = box.closest("figure"), { low, high, unit } = box.closest(".ks-charts").dataset;
  const { series, limits, yTitle } = JSON.parse(figure.dataset.chart);
  // Both ends are added, so that all charts have the same x-axis.
  const [xs, ...raw] = uPlot.join([[[+low, +high]], ...series.map((s) => [s.x, s.y])]);
  const positive = series.every((s) => s.y.every((value) => value === null || value > 0));
  const weight = +slider.value, isLog = log.checked && positive;
  figure.classList.toggle("ks-linear", log.checked && !positive);
  const smoothed = weight ? raw.map((values) => smooth(values, weight)) : [];
  const line = (i, more) => ({
    stroke: color(`--ks-s${i}`), width: 1.75, points: { fill: color(`--ks-s${i}`), size: 4 }, ...more,
  });
  const plot = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false },
    padding: [7, 15, 0, 0],
    cursor: { sync: { key: sync.key }, y: false, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: isLog ? { distr: 3, range: logRange(limits) } : { range: yRange(limits) } },
    axes: [
      axis({ label: unit, size: 22, gap: 3, space: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] }),
      axis({
        label: yTitle || undefined, size: 50, gap: 7, space: 26,
        ...(isLog ? { splits: logTicks, filter: (_plot, splits) => splits, values: logTexts } : {}),
      }),
    ],
    series: [
      {},
      ...raw.map((_, i) => line(i, weight ? { alpha: 0.3, width: 1, points: { show: false } } : {})),
      ...smoothed.map((_, i) => line(i)),
    ],
    hooks: {
      draw: [drawLimits(limits)],
      setCursor: [readOut(figure, unit, (i) => 1 + i + (weight ? raw.length : 0))],
      setScale: [(each, key) => {
        if (key !== "x") return;
        const { min, max } = each.scales.x;
        zoom = min > +low || max < +high ? { min, max } : null;
        reset.disabled = zoom === null;
      }],
    },
  }, [xs, ...raw, ...smoothed], box);
  plot.source = figure.dataset.chart;
  plots.set(box, plot);
};

// Restores the last zoom and cursor on a new plot.
const restore = (plot, before, x) => {
  if (before) plot.setScale("x", before);
  if (x !== null) plot.setCursor({ left: plot.valToPos(x, "x"), top: 1 }, true, false);
};

const remove = (box) => {
  plots.get(box)?.destroy();
  plots.delete(box);
};

const redraw = () => {
  const before = zoom;
  for (const box of [...plots.keys()]) {
    remove(box);
    draw(box);
  }
  for (const plot of plots.values()) restore(plot, before, null);
};

// A box is drawn when it first has a size; boxes in closed tabs have none.
const sizes = new ResizeObserver((entries) => {
  for (const { target: box } of entries) {
    if (!box.isConnected || !box.clientWidth) continue;
    const before = zoom;
    if (plots.has(box)) plots.get(box).setSize({ width: box.clientWidth, height: box.clientHeight });
    else {
      draw(box);
      restore(plots.get(box), before, pointed);
    }
  }
});

// Gradio replaces boxes, or keeps them and removes their content.
const isCurrent = ([box, plot]) =>
  box.isConnected && plot.root.parentNode === box && plot.source === box.closest("figure").dataset.chart;

const update = () => {
  for (const [box] of [...plots].filter((each) => !isCurrent(each))) {
    sizes.unobserve(box);
    remove(box);
  }
  const boxes = element.querySelectorAll(".ks-uplot");
  tools.hidden = !element.querySelector(".ks-with-tools");
  boxes.forEach((box) => {
    if (!plots.has(box)) sizes.observe(box);
  });
};

const zoomTo = (range) => plots.forEach((plot) => plot.setScale("x", range));
const everything = (box) => {
  const { low, high } = box.closest(".ks-charts").dataset;
  return { min: +low, max: +high };
};

element.addEventListener("pointerleave", () => { pointed = null; });
element.addEventListener("keydown", (event) => {
  const box = event.target.closest(".ks-uplot"), plot = box && plots.get(box);
  if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
  const xs = plot.data[0], { min, max } = plot.scales.x;
  // The axis may reach beyond the last value of a run that goes on.
  const last = Math.max(...plot.data.slice(1).map((values) => values.findLastIndex((v) => v !== null && v !== undefined)));
  const shown = plot.cursor.left >= 0 ? plot.cursor.idx : null, step = event.shiftKey ? 10 : 1;
  const to = { ArrowLeft: (shown ?? last + 1) - step, ArrowRight: (shown ?? -1) + step, Home: 0, End: last }[event.key];
  const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
  if (to !== undefined) {
    const x = xs[Math.min(last, Math.max(0, to))];
    if (x < min || x > max) zoomTo({ min: min + x - (x < min ? min : max), max: max + x - (x < min ? min : max) });
    plot.setCursor({ left: plot.valToPos(x, "x"), top: 1 }, true, true);
    const legend = box.closest("figure").querySelector(".ks-legend");
    box.closest("figure").querySelector("output").textContent = legend.innerText;
  } else if (factor) {
    const all = everything(box), middle = pointed ?? (min + max) / 2, half = (factor * (max - min)) / 2;
    zoomTo({ min: Math.max(all.min, middle - half), max: Math.min(all.max, middle + half) });
  } else if (event.key === "0") zoomTo(everything(box));
  else if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 }, true, true);
  else return;
  event.preventDefault();
});
reset.addEventListener("click", () => {
  plots.forEach((plot, box) => plot.setScale("x", everything(box)));
});
slider.addEventListener("input", () => {
  tools.querySelector("output").textContent = slider.value;
  redraw();
});
log.addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.body, { attributeFilter: ["class"] }); // dark or light
new MutationObserver(update).observe(element, {
  childList: true, subtree: true, attributeFilter: ["data-chart"],
});
update();
