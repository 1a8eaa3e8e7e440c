// The comparison of runs: a table with check boxes, and the curves of the chosen runs over each other.
// What runs are called and say is untrusted: it is only ever set as text.
const { font, color, number, smooth, logRange, logTicks, logTexts, axis, write } = window.ksPlotting;
const { make, ask } = window.ksRequests;
const MOST = 10; // runs at a time, one color each
const REWARD = "reward/mean", KL = "kl/reference";
const FIRST = [REWARD, KL, "dpo/margin", "dpo/accuracy", "train/loss"]; // charts that are shown if reported
const TITLES = {
  [REWARD]: "Mean reward", [KL]: "KL to the reference, nats per response", "dpo/margin": "Reward margin",
  "dpo/accuracy": "Preference accuracy", "train/loss": "Loss",
};
const WHOLE = [1, 2, 5].flatMap((n) => [n, 10 * n, 100 * n, 1e3 * n, 1e4 * n, 1e5 * n]).sort((a, b) => a - b); // steps between ticks
const X_TITLES = { update: "update", time: "minutes worked", kl: "KL from SFT, nats per response" };

element.innerHTML = `<div class="ks-compare">
  <section class="ks-runs" aria-label="Runs"><div class="ks-tools">
    <input type="search" placeholder="Search names, notes and settings" aria-label="Search runs and settings">
    <select aria-label="Stage"><option value="policy">Policy runs</option><option value="reward">Reward models</option>
      <option value="">All stages</option></select>
    <select aria-label="Method"><option value="">All methods</option></select>
    <select aria-label="Status"><option value="">Any status</option><option>running</option><option>succeeded</option>
      <option>failed</option><option>cancelled</option></select><span class="ks-detail" role="status"></span></div>
    <div class="ks-scroll"><table class="ks-table"><caption class="ks-hidden">Runs</caption><thead><tr>
      <th scope="col"><span class="ks-hidden">Compare</span></th><th scope="col">Run</th><th scope="col" title="Since the run before with the same method">Changed settings</th>
      <th scope="col" class="ks-right">KL</th><th scope="col" class="ks-right">Reward</th>
      <th scope="col" class="ks-right">People</th><th scope="col">Status</th></tr></thead><tbody></tbody></table></div>
    <p class="ks-detail">KL and reward are those of a run's last update. Overview has those of the evaluation.</p></section>
  <section class="ks-overlay" aria-label="Curves"><div class="ks-tools">
    <label>X-axis <select class="ks-x"><option value="update">Update</option><option value="time">Time</option>
      <option value="kl">KL</option></select></label>
    <label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value="0"> <output>0</output></label>
    <label><input type="checkbox"> Log scale</label>
    <label>Add chart <select class="ks-add"></select></label>
    <button type="button" class="ks-button" disabled>Reset zoom</button></div>
    <div class="ks-charts"></div><div class="ks-flagged"></div></section></div>`;
const find = (selector) => element.querySelector(selector);
const [search, said, body] = [".ks-runs input", ".ks-runs [role=status]", "tbody"].map(find);
const [stage, method, status] = element.querySelectorAll(".ks-runs select");
// The filters by their names in the address; without a name, their first values.
const FILTERS = { find: search, stage, method, status }, INITIAL = { find: "", stage: "policy", method: "", status: "" };
const [xAxis, slider, log, adder, reset, box, flagged] =
  [".ks-x", "input[type=range]", ".ks-overlay input[type=checkbox]", ".ks-add", ".ks-overlay button", ".ks-charts", ".ks-flagged"].map(find);

let answered = false; // whether `rows` are what the server has
let rows = []; // of /research/api/runs, and the runs of studies
let studies = []; // of /research/api/studies
let chosen = new Map(); // run → its color, 0 to 9
let compared = { metrics: [], runs: [] };
let added = []; // metrics that the person added
let focus = null; // the run that is pointed at
let plots = []; // {figure, plot, x}
const zooms = {}; // x → {min, max}

const stroke = (run) => color(`--ks-s${chosen.get(run)}`);
const titled = (run) => run.name || named(run);
const named = (run) => run.study ? run.method : `${run.method || STAGES[run.stage]} · iteration ${run.iteration}`;
// The name in legends: what the table calls the run, with its id where two chosen runs are called the same.
const labelOf = (id) => {
  const run = byId(id), title = run ? titled(run) : id;
  const shared = [...chosen.keys()].some((other) => other !== id && byId(other) && titled(byId(other)) === title);
  return shared ? `${title} (${id})` : title;
};
const STAGES = { sft: "SFT", sampling: "Sampling", reward: "Reward model", policy: "Policy", evaluate: "Evaluation" };
const TONES = { running: "info", succeeded: "good", failed: "bad", cancelled: "warn" };
const byId = (id) => rows.find((run) => run.id === id);
const percent = (share) => `${Math.round(100 * share)}%`;
const brief = (value) => JSON.stringify(typeof value === "number" ? Number(value.toPrecision(6)) : value); // not 0.00007000000000000001
const settings = (run) => Object.entries(run.changed).map(([name, value]) => `${name}=${typeof value === "string" ? value : brief(value)}`);

function say(text) {
  said.textContent = text;
}

function matches(run) {
  if (stage.value && run.stage !== stage.value) return false;
  if (method.value && run.method !== method.value) return false;
  if (status.value && run.status !== status.value) return false;
  const text = [run.id, run.name, run.note, named(run), run.policy, run.status, ...settings(run)].join(" ").toLowerCase();
  return search.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function cell(label, content, css) {
  const made = make("td", css);
  made.dataset.label = label;
  made.append(content);
  return made;
}

// The runs of a study as rows: their names have the study's, for the legend and the search.
function runsOf(study) {
  const stage = study.kind === "retrain" ? "reward" : "policy";
  return study.runs.map((run) => ({ ...run, stage, iteration: study.iteration, name: `${study.name}: ${run.title}`, note: "" }));
}

const KINDS = { sweep: "KL-weight sweep", compare: "Method comparison", retrain: "Reward model without some judgments" };
const studyAt = (id) => `/research/?tab=runs&section=studies&study=${encodeURIComponent(id)}`;

// The header of a study's runs: its check box chooses all of them that are shown.
function group(study, shown) {
  const line = make("tr", "ks-study-row"), ids = shown.map((run) => run.id), picked = ids.filter((id) => chosen.has(id));
  line.dataset.study = study.id;
  const pick = Object.assign(make("input"), { type: "checkbox", checked: picked.length === ids.length && ids.length > 0 });
  pick.indeterminate = picked.length > 0 && !pick.checked;
  pick.setAttribute("aria-label", `Compare all runs of ${study.name}`);
  const swatch = make("span", "ks-pick"), name = make("span", "ks-figure"), link = make("a", "", study.name);
  swatch.append(pick);
  Object.assign(link, { href: studyAt(study.id), dir: "auto" });
  const facts = [KINDS[study.kind], `${study.runs.length} of ${study.planned} runs`, ...Object.entries(study.settings).map(([key, value]) => `${key}=${value}`)];
  name.append(link, make("small", "", facts.join(" · ")));
  const state = make("span", "ks-figure"), title = cell("Study", name);
  title.colSpan = 5; // up to the status
  state.append(make("span", `ks-badge ks-${TONES[study.status]}`, study.stopping ? "stopping" : study.status));
  if (study.status === "running") state.append(make("small", "", percent(study.progress)));
  line.append(cell("Compare", swatch), title, cell("Status", state));
  return line;
}

// The rows in the order of time, the newest first; the runs of a study below its header.
function lines(shown) {
  const own = shown.filter((run) => !run.study).map((run) => [run.started, [row(run)]]);
  const groups = studies.map((study) => [study, shown.filter((run) => run.study === study.id)]).filter(([, found]) => found.length)
    .map(([study, found]) => [study.created, [group(study, found), ...found.map(row)]]);
  return [...own, ...groups].sort(([one], [other]) => Date.parse(other) - Date.parse(one)).flatMap(([, made]) => made);
}

function row(run) {
  const line = make("tr", run.study ? "ks-member" : "");
  line.dataset.run = run.id;
  const pick = Object.assign(make("input"), { type: "checkbox", checked: chosen.has(run.id) });
  pick.setAttribute("aria-label", `Compare ${titled(run)}, ${run.id}`);
  const swatch = make("span", "ks-pick");
  swatch.append(pick);
  if (chosen.has(run.id)) swatch.style.setProperty("--ks-line-color", `var(--ks-s${chosen.get(run.id)})`);
  const name = make("span", "ks-figure"), link = make("a", "", run.title || titled(run));
  link.href = run.study ? studyAt(run.study) : `/research/?tab=runs&run=${encodeURIComponent(run.id)}`;
  link.dir = "auto";
  const facts = [...(run.study ? [run.method].filter((method) => method !== run.title) : [run.id]), ...(run.attempt > 1 ? [`attempt ${run.attempt}`] : [])];
  name.append(link, ...(run.name && !run.study ? [make("small", "", named(run))] : []), make("small", "", facts.join(" · ")));
  if (run.note) name.title = run.note;
  const people = make("span", "ks-figure", run.people ? percent(run.people.rate) : "–");
  if (run.people) people.append(make("small", "", `${percent(run.people.low).slice(0, -1)}–${percent(run.people.high)}`));
  const state = make("span", "ks-figure");
  state.append(make("span", `ks-badge ks-${TONES[run.status]}`, run.status));
  if (run.flags) state.append(make("small", "", `${run.flags} red ${run.flags === 1 ? "flag" : "flags"}`));
  const changed = make("span", "ks-changed", settings(run).join(", ") || "–");
  changed.title = settings(run).join("\n");
  line.append(
    cell("Compare", swatch), cell("Run", name), cell("Changed settings", changed),
    cell("KL", number(run.kl, 3), "ks-right"), cell("Reward", number(run.reward, 3), "ks-right"),
    cell("People", people, "ks-right"), cell("Status", state),
  );
  return line;
}

function showTable() {
  const shown = rows.filter(matches);
  const { run, study } = (body.contains(document.activeElement) && document.activeElement.closest("tr").dataset) || {};
  body.replaceChildren(...lines(shown));
  if (run || study) body.querySelector(`tr[data-${run ? "run" : "study"}="${CSS.escape(run ?? study)}"] input`)?.focus();
  if (!rows.length) say("No runs yet.");
  else if (!shown.length) say("No run matches.");
  else say(chosen.size >= MOST ? `${MOST} runs are chosen; clear one to choose another.` : `${shown.length} of ${rows.length} runs`);
  for (const pick of body.querySelectorAll("input:not(:checked)")) pick.disabled = chosen.size >= MOST;
}

// Fills the filters from the address, once there are runs.
function readFilters() {
  const methods = [...new Set(rows.map((run) => run.method).filter(Boolean))];
  method.append(...methods.map((each) => new Option(each, each)));
  const query = new URLSearchParams(location.search);
  for (const [name, field] of Object.entries(FILTERS)) {
    const asked = query.get(name);
    if (asked !== null && (field === search || [...field.options].some((each) => each.value === asked))) field.value = asked;
  }
}

function writeFilters() {
  const query = new URLSearchParams(location.search);
  for (const [name, field] of Object.entries(FILTERS)) {
    if (field.value === INITIAL[name]) query.delete(name);
    else query.set(name, field.value);
  }
  history.replaceState(null, "", `${location.pathname}?${query}`);
}

function choose(runs, wanted) {
  for (const run of runs) {
    const taken = new Set(chosen.values());
    if (!wanted) chosen.delete(run);
    else if (!chosen.has(run) && chosen.size < MOST) chosen.set(run, [...Array(MOST).keys()].find((slot) => !taken.has(slot)));
  }
  const query = new URLSearchParams(location.search);
  if (chosen.size) query.set("runs", [...chosen.keys()].join(","));
  else query.delete("runs");
  history.replaceState(null, "", `${location.pathname}?${query}`);
  showTable();
  load();
}

// The metrics with a chart: reward against KL first, then the usual ones, then those added.
function wanted() {
  return [...new Set([...FIRST.filter((name) => compared.metrics.includes(name)), ...added])];
}

// The points of a run's metric by step: x and y, without the steps that have no x.
function points(found, metric, x) {
  const curve = found.curves[metric];
  if (!curve) return null;
  const at = { time: found.seconds, kl: found.curves[KL] }[x];
  const place = at && new Map(at.steps.map((step, i) => [step, at.values[i] / (x === "time" ? 60 : 1)]));
  const kept = { run: found.run, steps: [], xs: [], ys: [] };
  curve.steps.forEach((step, i) => {
    const value = place ? place.get(step) : step;
    if (value === undefined || !Number.isFinite(curve.values[i])) return;
    kept.steps.push(step);
    kept.xs.push(value);
    kept.ys.push(curve.values[i]);
  });
  kept.sorted = kept.xs.every((value, i) => !i || kept.xs[i - 1] <= value); // KL goes up and down
  return kept.xs.length ? kept : null;
}

// The number of values of a sorted list that are below `at`.
function below(sorted, at) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function padded([low, high]) {
  const space = high > low ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
  return [low - space, high + space];
}

// The range of y over the points whose x is visible.
function visible(lines, { min, max }) {
  let low = Infinity, high = -Infinity;
  for (const { xs, shown } of lines) {
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] < min || xs[i] > max) continue;
      if (shown[i] < low) low = shown[i];
      if (shown[i] > high) high = shown[i];
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

const pixel = () => devicePixelRatio;

// A long line over a sorted x has many points in a column of pixels: only the first, the lowest, the highest
// and the last of each column are drawn, which are the same pixels.
function traceColumns(plot, xs, ys, first, last) {
  const { ctx } = plot;
  let column = NaN, low, high, end;
  for (let i = first; i < last; i++) {
    const x = plot.valToPos(xs[i], "x", true), y = plot.valToPos(ys[i], "y", true);
    if (Math.round(x) === column) {
      [low, high, end] = [Math.min(low, y), Math.max(high, y), y];
      continue;
    }
    if (column === column) [low, high, end].forEach((each) => ctx.lineTo(column, each));
    column = Math.round(x);
    low = high = end = y;
    ctx.lineTo(column, y);
  }
  [low, high, end].forEach((each) => ctx.lineTo(column, each));
}

function drawLine(plot, { xs, sorted, run }, ys, alpha, width) {
  const { ctx } = plot, { min, max } = plot.scales.x;
  ctx.globalAlpha = focus && focus !== run ? alpha * 0.2 : alpha;
  ctx.lineWidth = width * pixel();
  ctx.beginPath();
  // With the neighbors of the visible points, to which the line goes on.
  const first = sorted ? Math.max(0, below(xs, min) - 1) : 0;
  const last = sorted ? Math.min(xs.length, below(xs, max) + 1) : xs.length;
  if (sorted && last - first > 2 * plot.bbox.width) traceColumns(plot, xs, ys, first, last);
  else for (let i = first; i < last; i++) ctx.lineTo(plot.valToPos(xs[i], "x", true), plot.valToPos(ys[i], "y", true));
  ctx.stroke();
  if (xs.length === 1) ctx.fillRect(plot.valToPos(xs[0], "x", true) - 2 * pixel(), plot.valToPos(ys[0], "y", true) - 2 * pixel(), 4 * pixel(), 4 * pixel());
  ctx.globalAlpha = 1;
}

// A triangle below the curve at each red flag.
function drawFlags(plot, line) {
  const found = compared.runs.find((each) => each.run === line.run), size = 5 * pixel();
  for (const step of new Set(found.flags.map((flag) => flag.step))) {
    const i = line.steps.indexOf(step);
    if (i < 0) continue;
    const x = plot.valToPos(line.xs[i], "x", true), y = plot.valToPos(line.shown[i], "y", true) + 2 * pixel();
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, y);
    plot.ctx.lineTo(x - size, y + 1.7 * size);
    plot.ctx.lineTo(x + size, y + 1.7 * size);
    plot.ctx.closePath();
    plot.ctx.fillStyle = color("--ks-bad");
    plot.ctx.fill();
  }
}

function smoothe(lines) {
  for (const line of lines) line.shown = +slider.value ? smooth(line.ys, +slider.value) : line.ys;
}

function draw(figure, x, lines) {
  smoothe(lines);
  const everything = extent(lines.flatMap((line) => extent(line.xs)));
  const all = everything[1] > everything[0] ? everything : [everything[0] - 0.5, everything[0] + 0.5];
  const positive = lines.every((line) => line.ys.every((value) => value > 0)), isLog = log.checked && positive;
  figure.classList.toggle("ks-linear", log.checked && !positive);
  const place = figure.querySelector(".ks-uplot");
  const plot = new uPlot({
    mode: 2, width: place.clientWidth, height: place.clientHeight, legend: { show: false }, padding: [7, 15, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    scales: {
      x: { time: false, auto: false, range: (_plot, min, max) => [min, max] },
      y: { auto: false, distr: isLog ? 3 : 1, range: (_plot, min, max) => [min, max] },
    },
    axes: [
      axis({ label: X_TITLES[x], size: 22, gap: 3, space: 44, ...(x === "update" ? { incrs: WHOLE } : {}) }),
      axis({ size: 50, gap: 7, space: 26, ...(isLog ? { splits: logTicks, filter: (_plot, splits) => splits, values: logTexts } : {}) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    hooks: {
      draw: [(each) => {
        const { ctx, bbox } = each;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        ctx.lineJoin = "round";
        for (const line of lines) {
          ctx.strokeStyle = ctx.fillStyle = stroke(line.run);
          if (+slider.value) drawLine(each, line, line.ys, 0.25, 1);
          drawLine(each, line, line.shown, 1, 1.75);
        }
        for (const line of lines) drawFlags(each, line);
        ctx.restore();
      }],
      setCursor: [(each) => point(each, each.cursor.left >= 0 ? each.posToVal(each.cursor.left, "x") : null, x)],
      setSelect: [(each) => {
        const { left, width } = each.select;
        if (width > 4) zoom(x, { min: each.posToVal(left, "x"), max: each.posToVal(left + width, "x") });
        each.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  }, [null, [all, all]], place);
  const drawn = { figure, plot, x, lines, all, isLog };
  plot.over.addEventListener("dblclick", () => zoom(x, null));
  place.addEventListener("keydown", (event) => keys(event, drawn));
  plots.push(drawn);
  scale(drawn);
  readOut(drawn, null);
}

function scale({ plot, x, lines, all, isLog }) {
  const shown = zooms[x] ?? { min: all[0], max: all[1] };
  const range = visible(lines, shown);
  const [min, max] = isLog ? logRange([])(plot, ...range) : padded(range);
  plot.batch(() => {
    plot.setScale("x", shown);
    plot.setScale("y", { min, max });
  });
}

function zoom(x, range) {
  if (range) zooms[x] = range;
  else delete zooms[x];
  plots.filter((each) => each.x === x).forEach(scale);
  reset.disabled = !Object.keys(zooms).length;
}

// Shows the values at `at` on all charts with the same x-axis, once a frame however often the pointer moves.
let pointed = null;
function point(plot, at, x) {
  if (!pointed) requestAnimationFrame(() => {
    const next = pointed;
    pointed = null;
    showValues(...next);
  });
  pointed = [plot, at, x];
}

function showValues(plot, at, x) {
  for (const drawn of plots.filter((each) => each.x === x)) {
    if (drawn.plot !== plot && plot.cursor.event) {
      drawn.plot.setCursor({ left: at === null ? -10 : drawn.plot.valToPos(at, "x"), top: 1 }, false);
    }
    readOut(drawn, at);
  }
}

// The point that is nearest to `at`.
function nearest({ xs, sorted }, at) {
  if (sorted) {
    const next = Math.min(below(xs, at), xs.length - 1);
    return next && at - xs[next - 1] <= xs[next] - at ? next - 1 : next;
  }
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - at) < Math.abs(xs[best] - at)) best = i;
  return best;
}

function readOut({ figure, lines, x }, at) {
  write(figure.querySelector(".ks-at"), at === null ? "" : `${X_TITLES[x].split(",")[0]} ${number(x === "update" ? Math.round(at) : at, 4)}`);
  figure.querySelectorAll(".ks-key em").forEach((value, i) => {
    const { shown } = lines[i];
    write(value, number(shown[at === null ? shown.length - 1 : nearest(lines[i], at)], 3));
  });
}

function keys(event, { plot, x, all }) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { min, max } = plot.scales.x, span = max - min, middle = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
  const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
  const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
  if (factor) zoom(x, { min: Math.max(all[0], middle - (factor * span) / 2), max: Math.min(all[1], middle + (factor * span) / 2) });
  else if (event.key === "0") zoom(x, null);
  else if (step) {
    const at = Math.min(max, Math.max(min, middle + step * span));
    plot.setCursor({ left: plot.valToPos(at, "x"), top: 1 }, false);
    showValues(plot, at, x);
    plot.root.closest("figure").querySelector("output").textContent = plot.root.closest("figure").querySelector(".ks-legend").innerText;
  } else return;
  event.preventDefault();
}

function figure(title, lines, missing) {
  const made = make("figure", "ks-chart ks-tall");
  made.innerHTML = `<figcaption><span class="ks-title"><b></b></span><span class="ks-legend"><span class="ks-at"></span></span></figcaption>
    <div class="ks-uplot" tabindex="0" role="application" aria-roledescription="line chart"></div><output class="ks-hidden"></output>`;
  made.querySelector("b").textContent = title;
  for (const line of lines) {
    const key = make("span", "ks-key"), mark = make("i");
    mark.style.background = `var(--ks-s${chosen.get(line.run)})`;
    key.append(mark, `${labelOf(line.run)} `, make("em"));
    made.querySelector(".ks-legend").append(key);
  }
  if (missing.length) made.append(make("div", "ks-detail", `Not reported by ${missing.map(labelOf).join(", ")}.`));
  const said = lines.map((line) => `${labelOf(line.run)}: ${number(line.ys[0], 3)} to ${number(line.ys.at(-1), 3)}`);
  made.querySelector(".ks-uplot").ariaLabel = `${title}. ${said.join("; ")}. Keys: arrows move, plus and minus zoom, 0 resets.`;
  return made;
}

function showCharts() {
  for (const { plot } of plots) plot.destroy();
  plots = [];
  box.replaceChildren();
  if (!rows.length) {
    if (answered) box.append(Object.assign(make("div", "ks-empty"), { innerHTML: "<b>No runs yet</b><p>Training starts the first run. Its curves appear here.</p>" }));
  } else if (!chosen.size) {
    box.append(Object.assign(make("div", "ks-empty"), { innerHTML: "<b>No runs chosen</b><p>Check runs in the table to compare their curves.</p>" }));
  } else if (compared.runs.length && !compared.metrics.length) {
    box.append(Object.assign(make("div", "ks-empty"), { innerHTML: "<b>No metrics</b><p>The chosen runs report no metrics.</p>" }));
  }
  const x = xAxis.value, planned = wanted().filter((metric) => x !== "kl" || metric !== KL).map((metric) => [TITLES[metric] ?? metric, metric, x]);
  if (x !== "kl" && compared.metrics.includes(REWARD) && compared.metrics.includes(KL)) planned.unshift(["Reward against KL", REWARD, "kl"]);
  for (const [title, metric, on] of planned) {
    const found = compared.runs.map((run) => [run.run, points(run, metric, on)]);
    const lines = found.map(([, line]) => line).filter(Boolean);
    if (!lines.length) continue;
    const made = figure(title, lines, found.filter(([, line]) => !line).map(([run]) => run));
    box.append(made);
    draw(made, on, lines);
  }
  if (planned.length && x === "time" && compared.runs.every((run) => !run.seconds.steps.length)) {
    box.append(make("p", "ks-detail", "The chosen runs report no times. Choose another x-axis."));
  }
  const rest = compared.metrics.filter((metric) => !wanted().includes(metric));
  adder.replaceChildren(new Option("Choose a metric", ""), ...rest.map((metric) => new Option(metric, metric)));
  flagged.replaceChildren(...compared.runs.flatMap(flagLines));
}

// A line for each red flag of a run: its updates, and what was seen last.
function flagLines({ run, flags }) {
  const last = new Map(flags.map((flag) => [flag.name, flag]));
  return [...last.values()].map((flag) => {
    const steps = flags.filter((each) => each.name === flag.name).map((each) => each.step);
    const when = steps.length > 1 ? `updates ${steps[0]}–${steps.at(-1)}` : `update ${steps[0]}`;
    const line = make("p", "ks-detail");
    line.append(make("b", "", "▲ "), `${labelOf(run)}, ${when}: ${flag.message}`);
    return line;
  });
}

let loading = 0;
async function load() {
  const turn = ++loading;
  const query = new URLSearchParams();
  for (const run of chosen.keys()) query.append("run", run);
  for (const metric of new Set([...FIRST, ...added])) query.append("metric", metric);
  try {
    const found = chosen.size ? await ask(`runs/curves?${query}`) : { metrics: [], runs: [] };
    if (turn !== loading) return;
    compared = found;
    showCharts();
  } catch (error) {
    say(error.message);
  }
}

async function refresh() {
  if (!element.getClientRects().length || document.hidden) return;
  let found, groups;
  try {
    [{ runs: found }, { studies: groups }] = await Promise.all([ask("runs"), ask("studies")]);
  } catch (error) {
    say(error.message);
    return;
  }
  found = [...found, ...groups.flatMap(runsOf)];
  if (answered && JSON.stringify([found, groups]) === JSON.stringify([rows, studies])) return;
  answered = true;
  studies = groups;
  const first = !rows.length, before = rows;
  rows = found;
  if (first) {
    readFilters();
    chooseFirst();
  }
  showTable();
  const moved = (run) => JSON.stringify(byId(run)) !== JSON.stringify(before.find((each) => each.id === run));
  if (first || [...chosen.keys()].some(moved)) load();
}

// The runs of the address, or the two newest policy runs.
function chooseFirst() {
  const asked = (new URLSearchParams(location.search).get("runs") ?? "").split(",").filter(byId);
  const newest = rows.filter((run) => run.stage === "policy" && !run.study && run.reward !== null).slice(0, 2).map((run) => run.id);
  chosen = new Map((asked.length ? asked : newest).slice(0, MOST).map((run, slot) => [run, slot]));
}

body.addEventListener("change", (event) => {
  const { run, study } = event.target.closest("tr").dataset;
  choose(run ? [run] : rows.filter((each) => each.study === study && matches(each)).map((each) => each.id), event.target.checked);
});
for (const [name, at] of [["pointerover", (event) => event.target.closest("tr")?.dataset.run], ["pointerleave", () => null]]) {
  body.addEventListener(name, (event) => {
    const run = at(event);
    const next = run && chosen.has(run) ? run : null;
    if (next === focus) return;
    focus = next;
    for (const { plot } of plots) plot.redraw(false);
  });
}
for (const field of Object.values(FILTERS)) {
  field.addEventListener(field === search ? "input" : "change", () => {
    writeFilters();
    showTable();
  });
}
xAxis.addEventListener("change", showCharts);
log.addEventListener("change", showCharts);
slider.addEventListener("input", () => {
  find(".ks-overlay output").textContent = slider.value;
  for (const drawn of plots) {
    smoothe(drawn.lines);
    scale(drawn);
    readOut(drawn, null);
  }
});
adder.addEventListener("change", () => {
  if (adder.value) added.push(adder.value);
  load();
});
reset.addEventListener("click", () => Object.keys(zooms).forEach((x) => zoom(x, null)));
new MutationObserver(showCharts).observe(document.body, { attributeFilter: ["class"] }); // dark or light
new ResizeObserver(() => plots.forEach(({ plot, figure: each }) => {
  const place = each.querySelector(".ks-uplot");
  if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: place.clientHeight });
})).observe(box);
// A section that is not open has no size; it is filled when it is opened.
new IntersectionObserver(refresh).observe(element);
setInterval(refresh, 5000);
refresh();
