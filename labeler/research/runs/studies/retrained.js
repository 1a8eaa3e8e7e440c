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
  const hundredths = (value) => minus(value.toFixed(2));
  const thousandths = (value) => signed(value, 3);

  function interval(shift, shown) {
    return shift.low === null ? `${shown(shift.shift)} (one prompt)` : `${shown(shift.shift)} (${shown(shift.low)} to ${shown(shift.high)})`;
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

  // Tables; `table` is that of studies.js.
  const fromTo = (before, after) => (before === after ? before : `${before} → ${after}`);
  const right = "ks-right";

  // A shift with its interval, and whether as many random judgments left out give as much.
  function shiftCell(figure, shown) {
    if (!figure) return null;
    const box = make("span", "st-shift"), { chance } = figure;
    box.append(make("span", "", interval(figure, shown)));
    if (chance?.low != null) box.append(make("small", chance.beyond ? "st-beyond" : "", `${chance.beyond ? "beyond" : "within"} chance: ${shown(chance.low)} to ${shown(chance.high)}`));
    else if (chance) box.append(make("small", "", `one control: ${shown(chance.controls[0])}`));
    return box;
  }

  const change = (figure, shown) => (figure ? `${shown(figure.before)} → ${shown(figure.after)}` : null);

  function heldOutTable(report, table) {
    const head = [["Judgments", "ks-left"], ["Number", right], ["Accuracy", right], ["Shift, points", right], ["Log-loss, nats", right], ["Shift, nats", right]];
    return table(head, report.held_out.map((each) => [
      GROUPS[each.group], String(each.judgments), change(each.accuracy, percent), shiftCell(each.accuracy, points), change(each.log_loss, decimal), shiftCell(each.log_loss, thousandths),
    ]));
  }

  function policyTable(report, table) {
    const head = [["Policy", "ks-left"], ["Place", right], ["Predicted wins against SFT", right], ["Shift, points", right], ["Reward above SFT, sd", right], ["Shift, sd", right]];
    return table(head, report.policies.map((each) => [
      each.policy, fromTo(String(each.rank_before), String(each.rank_after)), change(each.win_rate, percent), shiftCell(each.win_rate, points), change(each.gain, decimal), shiftCell(each.gain, thousandths),
    ]));
  }

  function verdictBadges(each) {
    const box = make("span", "st-verdicts");
    const badge = (verdict) => make("span", `ks-badge ${VERDICTS[verdict] ? `ks-${VERDICTS[verdict]}` : ""}`, verdict);
    box.append(badge(each.before), ...(each.before === each.after ? [] : [" → ", badge(each.after)]));
    return box;
  }

  function gateTable(report, table) {
    const head = [["Policy", "ks-left"], ["Verdict", "ks-left"], ["Judgments", right], ["Wins among people", right], ["Shift, points", right], ["log E", right]];
    return table(head, report.gate.filter((each) => each.rate_before).map((each) => [
      each.policy, verdictBadges(each), fromTo(String(each.rate_before.comparisons), String(each.rate_after?.comparisons ?? 0)),
      change(each.shift, percent) ?? percent(each.rate_before.win_rate), shiftCell(each.shift, points), `${hundredths(each.log_e_before)} → ${hundredths(each.log_e_after)}`,
    ]));
  }

  function countsTable(report, table) {
    const head = [["Judgments of the snapshot", "ks-left"], ["Before", right], ["Left out", right], ["Remain", right]];
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

  // `plot` shows the stored figure of the study.
  function result(report, table, plot) {
    const box = make("div", "st-retrained");
    box.append(findings(report), plot);
    box.append(section("Held-out judgments", heldOutTable(report, table), `Neither model has learned from these judgments. Less log-loss is better.${report.plan.controls > 1 ? " Chance: the 95% limit of leaving out as many random judgments." : ""}`));
    if (report.policies.length) box.append(section("Policies, by the reward model", policyTable(report, table), "On the stored responses of each policy's evaluation. Places include SFT, at 50%."));
    if (report.gate.some((each) => each.rate_before)) box.append(section("Verdicts of the gate", gateTable(report, table), "Recomputed on the judgments that people had given when the study was planned. The verdicts in use do not change. Chance: the 95% limit of leaving out as many random judgments of the policy."));
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
      const label = make("label"), pick = Object.assign(make("input"), { type: "checkbox", value: each.value }), name = make("span");
      name.append(make("bdi", "", each.value), ` (${each.judgments})`); // a name may turn the text after it around
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

