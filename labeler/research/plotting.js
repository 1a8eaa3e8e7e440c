// What charts.js and compare.js share: numbers, smoothing, ranges, ticks and axes of uPlot.
window.ksPlotting = (() => {
  const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;
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

  // The nearest limits beyond both ends of the axis, unless a limit is drawn toward that end.
  const beyond = (limits, { min, max }) => {
    const middle = (min + max) / 2, drawn = limits.filter(({ value }) => value >= min && value <= max);
    const above = limits.filter(({ value }) => value > max).sort((a, b) => a.value - b.value);
    const below = limits.filter(({ value }) => value < min).sort((a, b) => b.value - a.value);
    return {
      above: drawn.some(({ value }) => value > middle) ? undefined : above[0],
      below: drawn.some(({ value }) => value < middle) ? undefined : below[0],
    };
  };

  // A range with all values, the limits near them or always shown, and some space.
  const yRange = (limits) => (_plot, min, max) => {
    if (min === null) return [0, 1];
    let low = min, high = max;
    const reach = Math.max(high - low, 0.25 * Math.max(Math.abs(low), Math.abs(high)));
    for (const { value, always } of limits) {
      if (always || (value >= min - reach && value <= max + reach)) {
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
    for (const { value, always } of limits) {
      if (value > 0 && (always || (value >= min / 2 && value <= max * 2))) [low, high] = [Math.min(low, value), Math.max(high, value)];
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

  const axis = (more) => ({
    stroke: color("--ks-soft"), font: font(), labelFont: font(), labelSize: 16, labelGap: 0,
    grid: { stroke: color("--ks-line"), width: 1 }, ticks: { show: false },
    values: tickTexts,
    ...more,
  });

  // Changes the text in its node: a node that is put in or taken out makes the browser match each `:has()` rule
  // anew, for every row of a table, in every frame.
  const write = (element, text) => {
    const [node] = element.childNodes;
    if (!node) element.textContent = text;
    else if (node.data !== text) node.data = text;
  };

  return { font, color, number, smooth, beyond, yRange, logRange, logTicks, logTexts, axis, write };
})();
