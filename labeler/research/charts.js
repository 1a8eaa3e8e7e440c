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

const font = () => `11px ${getComputedStyle(element).fontFamily}`;
const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

const number = (value, digits) => {
  if (value === null || value === undefined) return "–";
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  const text = size && (size < 1e-3 || size >= 1e6)
    ? rounded.toExponential().replace("e+", "e")
    : rounded.toLocaleString("en-US", { maximumFractionDigits: 9 });
  return text.replace(/^-/, "−");
};

// An exponential moving average with bias correction; gaps stay gaps.
const smooth = (values, weight) => {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
};

// Whether two values differ by more than the rounding of a smoothed constant.
const differ = (low, high) => high - low > 1e-9 * Math.abs(high);

// A range with all values, the limits near them, and some space.
const yRange = (limits) => (_plot, min, max) => {
  if (min === null) return [0, 1];
  let low = min, high = max;
  const reach = Math.max(high - low, 0.25 * Math.max(Math.abs(low), Math.abs(high)));
  for (const { value } of limits) {
    if (value >= min - reach && value <= max + reach) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  const space = differ(low, high) ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
  // Space below 0 would suggest negative lengths, shares and losses.
  return [low >= 0 && low < space && differ(low, high) ? 0 : low - space, high + space];
};

// The range of a log scale with equal space at both ends; uPlot would extend it to whole decades.
const logRange = (limits) => (_plot, min, max) => {
  if (min === null) return [1, 10];
  let low = min, high = max;
  for (const { value } of limits) {
    if (value >= min / 2 && value <= max * 2) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  const space = (high / low) ** 0.06;
  return differ(low, high) ? [low / space, high * space] : [low / 2, high * 2];
};

// Ticks of a log scale: even steps within a decade; 1, 2, 5 over a few; otherwise powers of ten.
const logTicks = (_plot, _axis, min, max) => {
  if (!(min > 0 && max > min)) return [];
  const decades = Math.log10(max / min), found = [];
  if (decades < 1) {
    const rough = (max - min) / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
    for (let i = Math.ceil(min / step); i * step <= max; i++) found.push(i * step);
    return found;
  }
  for (let k = Math.floor(Math.log10(min)); 10 ** k <= max; k++) {
    for (const each of decades < 3 ? [1, 2, 5] : [1]) {
      const tick = each * 10 ** k;
      if (tick >= min && tick <= max) found.push(tick);
    }
  }
  return found;
};

// Tick labels with as many decimals as the step needs.
const tickTexts = (_plot, splits, _axis, _space, step) => {
  const decimals = step >= 1e-3 ? (`${Number(step.toPrecision(6))}`.split(".")[1] || "").length : null;
  return splits.map((value) => {
    if (value === null) return null;
    if (decimals === null || Math.abs(value) >= 1e6) return number(value, 6);
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
      .replace(/^-/, "−");
  });
};

const logTexts = (_plot, splits) => splits.map((value) => number(value, 3));

const drawLimits = (limits) => (plot) => {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color("--ks-bad");
  ctx.lineWidth = 1.25 * devicePixelRatio;
  ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.font = font().replace("11px", `${11 * devicePixelRatio}px`);
  for (const { value, label } of limits) {
    const { min, max } = plot.scales.y;
    if (value < min || value > max) continue;
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
  ctx.restore();
};

// Shows the values at the cursor, or the last ones without a cursor.
const readOut = (figure, unit, shown) => (plot) => {
  const { idx, left } = plot.cursor;
  const at = idx !== null && idx !== undefined && left >= 0 ? idx : null;
  if (at !== null) pointed = plot.data[0][at];
  figure.querySelector(".ks-at").textContent = at === null ? "" : `${unit} ${number(plot.data[0][at], 6)}`;
  figure.querySelectorAll(".ks-key em").forEach((key, i) => {
    const values = plot.data[shown(i)];
    key.textContent = number(at === null ? values.findLast((v) => v !== null && v !== undefined) : values[at], 3);
  });
};

const axis = (more) => ({
  stroke: color("--ks-soft"), font: font(), labelFont: font(), labelSize: 16, labelGap: 0,
  grid: { stroke: color("--ks-line"), width: 1 }, ticks: { show: false },
  values: tickTexts,
  ...more,
});

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
  const xs = plot.data[0], { min, max } = plot.scales.x, last = xs.length - 1;
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
