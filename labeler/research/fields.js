// Fields for settings, which the settings page and the form that starts training share.
// Labels, help and values are only ever set as text.
window.ksFields = (() => {
  const { make } = window.ksRequests;

  // A value as text: 1e-05 is 1e-5, 1.0 is 1.
  function text(value) {
    if (typeof value !== "number") return value === null ? null : String(value);
    return value && Math.abs(value) < 1e-3 ? value.toExponential() : String(value);
  }

  // Settings with their values as text.
  const texts = (settings) =>
    settings.map((each) => ({ ...each, ...Object.fromEntries(["value", "default", "preset", "last"].map((name) => [name, text(each[name])])) }));

  // Whether two texts are the same value: 1e-5 is 0.00001.
  function same(one, other) {
    const [a, b] = [one, other].map((each) => String(each ?? "").trim());
    if (a === b) return true;
    return a !== "" && b !== "" && Number(a) === Number(b);
  }

  // Whether name, label, section and help contain every word of the search.
  function matches(setting, search) {
    const text = `${setting.name} ${setting.label} ${setting.group} ${setting.help}`.toLowerCase();
    return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function input(setting, id) {
    if (setting.kind === "bool") return switched(setting, id);
    const made = setting.choices ? make("select") : make("input");
    if (setting.choices) made.append(...setting.choices.map((choice) => Object.assign(make("option", "", choice), { value: choice })));
    else Object.assign(made, { type: "text", autocomplete: "off", spellcheck: false });
    if (setting.kind !== "str") made.inputMode = "decimal";
    made.id = id;
    return made;
  }

  function switched(setting, id) {
    const made = Object.assign(make("input", "ks-switch"), { type: "checkbox", id });
    made.setAttribute("role", "switch");
    return made;
  }

  // A field: {element, value, fail(sentence)}.  `changed` is called when the person changes it.
  function field(setting, { prefix, value, changed, disabled }) {
    const id = `${prefix}-${setting.name.replaceAll(".", "-")}`;
    const element = make("div", "ks-setting");
    element.dataset.setting = setting.name;
    const label = Object.assign(make("label", "", setting.label), { htmlFor: id });
    const name = make("code", "", setting.name);
    const control = input(setting, id);
    control.disabled = Boolean(disabled);
    const problem = make("p", "ks-problem");
    problem.id = `${id}-problem`;
    problem.hidden = true;
    const help = make("p", "ks-help");
    help.append(...setting.help.split("`").map((text, i) => (i % 2 ? make("code", "", text) : text)));
    help.id = `${id}-help`;
    control.setAttribute("aria-describedby", `${help.id} ${problem.id}`);
    const head = make("div", "ks-setting-name");
    head.append(label, name);
    element.append(head, control, problem, help);

    const made = {
      element, control, help, setting,
      get value() {
        return setting.kind === "bool" ? String(control.checked) : control.value.trim();
      },
      set value(text) {
        if (setting.kind === "bool") control.checked = text === "true";
        else control.value = text;
      },
      fail(sentence) {
        problem.textContent = sentence ? readable(sentence, setting) : "";
        problem.hidden = !sentence;
        element.classList.toggle("ks-wrong", Boolean(sentence));
        if (sentence) control.setAttribute("aria-invalid", "true");
        else control.removeAttribute("aria-invalid");
      },
    };
    made.value = value;
    control.addEventListener(control.type === "text" ? "input" : "change", () => {
      made.fail("");
      changed?.(made);
    });
    return made;
  }

  // "ppo.lr='x' must be a number" → "Must be a number", next to the field of ppo.lr.
  function readable(sentence, setting) {
    const own = sentence.match(/^([\w.]+)=(.*?) (must be .*)$/s);
    const text = own && own[1] === setting.name ? own[3] : sentence;
    // The name of a setting stays as it is written: "ppo.minibatch=8 must divide …".
    const word = /^[a-z]+$/i.test(text.split(" ", 1)[0]);
    return (word ? text[0].toUpperCase() + text.slice(1) : text) + (/[.!?]$/.test(text) ? "" : ".");
  }

  return { texts, same, matches, field };
})();
