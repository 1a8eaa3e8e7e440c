// The result of a study that trained a reward model again without some judgments, and its part of the form.  It shares
// a scope with studies.js.  Names of annotators are untrusted: they are only ever set as text.
const retrained = (() => {
  const { make } = window.ksRequests;
  const GROUPS = { remaining: "that remain", all: "all", left_out: "that are left out" };
  const USES = { learned: "Learned from", set_aside: "Set aside to decide when to stop", held_out: "Held out, never learned from" };
  const VERDICTS = { promoted: "good", blocked: "bad", provisional: "" };

  const minus = (text) => text.replace("-", "−");
  const signed = (value, digits) => minus(`${+value.toFixed(digits) >= 0 ? "+" : ""}${(+value.toFixed(digits) || 0).toFixed(digits)}`);
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const points = (share) => signed(100 * share, 1);
  const decimal = (value) => minus(value.toFixed(3));

  function interval(shift, shown) {
    return shift.low === null ? shown(shift.shift) : `${shown(shift.shift)} (${shown(shift.low)} to ${shown(shift.high)})`;
  }

  // What the plan leaves out, in a phrase.
  function described(plan) {
    const rules = [];
    if (plan.without.length) rules.push(`without ${plan.without.join(", ")}`);
    if (plan.only.length) rules.push(`only annotators of kind ${plan.only.join(", ")}`);
    if (plan.guidelines.length) rules.push(`only under guidelines ${plan.guidelines.join(", ")}`);
    if (plan.before) rules.push(`only before ${plan.before.slice(0, 16).replace("T", " ")} UTC`);
    return `${plan.model}: ${rules.join("; ")}${plan.controls ? `; ${plan.controls} ${plan.controls === 1 ? "control" : "controls"}` : ""}`;
  }

  // Tone and head of the note above the findings, from the accuracy on the judgments that remain.
  function headline(report) {
    const figure = report.held_out.find((each) => each.group === "remaining").accuracy;
    if (!figure) return ["warn", "Accuracy cannot be compared"];
    const head = `Accuracy shifts by ${points(figure.shift)} points`, clear = figure.low !== null && (figure.low > 0 || figure.high < 0);
    const beyond = figure.chance?.beyond ?? null;
    if (beyond === null) return ["info", clear ? `${head}; how much of it is chance is unknown` : `${head}: no clear shift`];
    if (!beyond) return ["info", `${head}: within chance`];
    return clear ? [figure.shift > 0 ? "good" : "warn", `${head}: beyond chance`] : ["info", `${head}: no clear shift`];
  }

  function findings(report) {
    const [tone, head] = headline(report), made = make("div", `ks-note ks-${tone}`), list = make("ul", "st-findings");
    list.append(...report.findings.map((each) => make("li", "", each)));
    made.append(make("b", "", head), list);
    return made;
  }

  // The plot: a row for each shift, on one scale of percentage points.
  function forest(report) {
    const sections = [
      ["Accuracy on held-out preferences", report.held_out.filter((each) => each.accuracy).map((each) => [`${GROUPS[each.group]} (${each.preferences})`, each.accuracy])],
      ["Predicted win rate against SFT", report.policies.map((each) => [each.policy, each.win_rate])],
      ["Win rate against SFT among people", report.gate.filter((each) => each.shift).map((each) => [each.policy, each.shift])],
    ].filter(([, rows]) => rows.length);
    const figures = sections.flatMap(([, rows]) => rows.map(([, figure]) => figure));
    const ends = figures.flatMap((each) => [each.shift, each.low ?? 0, each.high ?? 0, ...(each.chance?.controls ?? [])].map(Math.abs));
    const limit = nice(100 * Math.max(...ends, 0.01));
    const made = make("figure", "st-forest");
    made.append(make("figcaption", "", "Shifts in percentage points, after − before, with 95% intervals clustered by prompt"));
    for (const [name, rows] of sections) {
      made.append(make("h4", "", name));
      for (const [label, figure] of rows) made.append(forestRow(label, figure, limit));
    }
    const axis = make("div", "st-axis");
    for (const [share, text] of [[0, `−${limit}`], [0.5, "0"], [1, `+${limit}`]]) axis.append(placed("span", "", share, text));
    const foot = make("div", "st-row st-foot");
    foot.append(make("span"), axis);
    made.append(foot);
    if (report.plan.controls) {
      const key = make("p", "ks-detail st-key"), tick = make("i", "st-key-tick"), band = make("i", "st-key-band");
      key.append(tick, "controls ", ...(report.plan.controls > 1 ? [band, "95% limit of chance"] : []));
      made.append(key);
    }
    return made;
  }

  // The end of the axis: at least the largest shift, in points.
  function nice(largest) {
    const power = 10 ** Math.floor(Math.log10(largest));
    return [1, 2, 5, 10].map((step) => +(step * power).toPrecision(1)).find((step) => step >= largest * 0.999);
  }

  function placed(tag, css, share, text = "") {
    const made = make(tag, css, text);
    made.style.left = `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%`;
    return made;
  }

  function span(css, low, high, at) {
    const made = placed("i", css, at(low));
    made.style.right = `${(100 * (1 - Math.min(Math.max(at(high), 0), 1))).toFixed(2)}%`;
    return made;
  }

  function forestRow(label, figure, limit) {
    const row = make("div", "st-row"), track = make("div", "st-track"), at = (share) => 0.5 + (100 * share) / (2 * limit);
    const name = make("span", "st-label", label);
    name.dir = "auto";
    track.ariaHidden = "true"; // the text beside it says the same
    const { chance } = figure;
    if (chance?.low != null) track.append(span("st-chance", chance.low, chance.high, at));
    track.append(placed("i", "st-zero", 0.5));
    for (const each of chance?.controls ?? []) track.append(placed("i", "st-tick", at(each)));
    if (figure.low !== null) track.append(span("st-whisker", figure.low, figure.high, at));
    track.append(placed("i", "st-dot", at(figure.shift)));
    row.append(name, track, make("span", "st-value", interval(figure, points)));
    return row;
  }

  // Tables; `table` is that of studies.js.
  function heldOutTable(report, table) {
    const right = "ks-right", head = [["Judgments", "ks-left"], ["Number", right], ["Accuracy", right], ["Log-loss", right], ["Shift of log-loss", right], ["By chance", right]];
    return table(head, report.held_out.map((each) => [
      GROUPS[each.group], String(each.judgments), ...(each.accuracy ? [`${percent(each.accuracy.before)} → ${percent(each.accuracy.after)}`] : [null]),
      ...(each.log_loss ? [`${decimal(each.log_loss.before)} → ${decimal(each.log_loss.after)}`, interval(each.log_loss, (value) => signed(value, 3)), byChance(each.log_loss, (value) => signed(value, 3))] : [null, null, null]),
    ]));
  }

  function byChance({ chance }, shown) {
    if (!chance) return null;
    return chance.low === null ? shown(chance.controls[0]) : `${shown(chance.low)} to ${shown(chance.high)}`;
  }

  function policyTable(report, table) {
    const right = "ks-right", head = [["Policy", "ks-left"], ["Place", right], ["Predicted wins against SFT", right], ["By chance, points", right], ["Reward above SFT, sd", right]];
    return table(head, report.policies.map((each) => [
      each.policy, each.rank_before === each.rank_after ? String(each.rank_before) : `${each.rank_before} → ${each.rank_after}`,
      `${percent(each.win_rate.before)} → ${percent(each.win_rate.after)}`, byChance(each.win_rate, points),
      `${minus(each.gain.before.toFixed(2))} → ${minus(each.gain.after.toFixed(2))}`,
    ]));
  }

  function verdictBadges(each) {
    const box = make("span", "st-verdicts");
    const badge = (verdict) => make("span", `ks-badge ${VERDICTS[verdict] ? `ks-${VERDICTS[verdict]}` : ""}`, verdict);
    box.append(badge(each.before), ...(each.before === each.after ? [] : [" → ", badge(each.after)]));
    return box;
  }

  function gateTable(report, table) {
    const right = "ks-right", head = [["Policy", "ks-left"], ["Verdict", "ks-left"], ["Judgments", right], ["Wins before", right], ["Wins after", right], ["log E", right]];
    const rate = (found) => (found ? `${percent(found.win_rate)} (${Math.round(100 * found.low)} to ${Math.round(100 * found.high)}%)` : null);
    return table(head, report.gate.filter((each) => each.rate_before).map((each) => [
      each.policy, verdictBadges(each), `${each.rate_before.comparisons} → ${each.rate_after?.comparisons ?? 0}`,
      rate(each.rate_before), rate(each.rate_after), `${minus(each.log_e_before.toFixed(2))} → ${minus(each.log_e_after.toFixed(2))}`,
    ]));
  }

  function countsTable(report, table) {
    const right = "ks-right", head = [["Judgments of the snapshot", "ks-left"], ["Before", right], ["Left out", right], ["Remain", right]];
    const { counts } = report, rows = [
      ["All", counts.total], ...counts.by_use.map((each) => [USES[each.name], each]),
      ...counts.by_annotator.map((each) => [`By ${each.name}`, each]), ...counts.by_kind.map((each) => [`By annotators of kind ${each.name}`, each]),
    ];
    return table(head, rows.map(([name, each]) => [name, String(each.judgments), String(each.left_out), String(each.judgments - each.left_out)]));
  }

  function section(title, content, detail) {
    const box = make("section", "st-section");
    box.append(make("h4", "", title), content);
    if (detail) box.append(make("p", "ks-detail", detail));
    return box;
  }

  function result(report, table) {
    const box = make("div", "st-retrained");
    box.append(findings(report), forest(report));
    box.append(section("Held-out judgments", heldOutTable(report, table), "Neither model has learned from these judgments. Log-loss is in nats per judgment; less is better."));
    if (report.policies.length) box.append(section("Policies, by the reward model", policyTable(report, table), "On the stored responses of each policy's evaluation. Places include SFT, at 50%."));
    if (report.gate.some((each) => each.rate_before)) box.append(section("Verdicts of the gate", gateTable(report, table), "Recomputed on the judgments that people have given so far. The verdicts in use do not change."));
    const more = make("details", "st-counts");
    more.append(make("summary", "", `${report.counts.total.left_out} of ${report.counts.total.judgments} judgments are left out`), countsTable(report, table));
    box.append(more);
    const notes = make("div", "st-notes");
    notes.append(...report.notes.map((each) => make("p", "ks-detail", each)));
    if (report.notes.length) box.append(notes);
    return box;
  }

  // The part of the form.
  const MARKUP = `<div class="st-part" data-kind="retrain" hidden>
    <fieldset class="st-methods st-people"><legend>Leave out the judgments by</legend></fieldset>
    <label class="st-field st-only">Keep only judgments by<select name="only"></select></label>
    <label class="st-field st-guidelines">Keep only judgments under<select name="guidelines"></select></label>
    <label class="st-field">Keep only judgments before <span>optional</span><input type="date" name="before"><small class="st-dates"></small></label>
    <label class="st-field">Controls<input type="text" name="controls" inputmode="numeric" autocomplete="off" value="3"><small class="st-cost"></small></label></div>`;

  const counted = ({ value, judgments }) => `${value} (${judgments})`;

  function choose(select, any, values) {
    select.replaceChildren(new Option(any, ""), ...values.map((each) => new Option(counted(each), each.value)));
    select.closest(".st-field").hidden = values.length < 2;
  }

  // Fill in what the offer has; `duration` shows seconds.
  function fill(form, offer, duration) {
    form.querySelector(".st-people").replaceChildren(make("legend", "", "Leave out the judgments by"), ...offer.annotators.map((each) => {
      const label = make("label"), pick = Object.assign(make("input"), { type: "checkbox", value: each.value }), name = make("span", "", counted(each));
      name.dir = "auto";
      label.append(pick, name);
      return label;
    }));
    choose(form.elements.only, "any kind of annotator", offer.kinds);
    choose(form.elements.guidelines, "any guidelines", offer.guidelines);
    const day = (time) => time.slice(0, 10);
    form.querySelector(".st-dates").textContent = offer.first ? `The judgments are from ${day(offer.first)} to ${day(offer.last)} (UTC).` : "";
    form.querySelector(".st-cost").textContent = `Models trained without as many random judgments, to show what chance gives; 0 to 20, at least 2 for a limit. Each takes as long as the retraining${offer.seconds ? `, about ${duration(offer.seconds)}` : ""}.`;
  }

  function values(form) {
    const one = (name) => (form.elements[name].value ? [form.elements[name].value] : []);
    return {
      without: [...form.querySelectorAll(".st-people input:checked")].map((each) => each.value),
      only: one("only"), guidelines: one("guidelines"), before: form.elements.before.value || null,
      controls: Number(form.elements.controls.value),
    };
  }

  return { described, result, MARKUP, fill, values };
})();

