// Lists and pairs of the Data page: a click opens an item, and a button sends its action, after asking
// for a text if it says so.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { open, action, target, ask, field } = button.dataset;
  if (open) {
    for (const each of element.querySelectorAll("[aria-current]")) each.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    trigger("act", { action: "open", id: open });
    showBeside();
  } else if (action && ask) {
    askFor(button.dataset);
  } else if (action) {
    const text = field ? element.querySelector(`#${field}`).value : "";
    trigger("act", { action, id: target, text });
  }
});

// On a phone, the pair is below the list.
function showBeside() {
  const pair = document.querySelector("#judgment-pair");
  if (!pair || !matchMedia("(max-width: 1000px)").matches) return;
  const shown = new MutationObserver(() => {
    shown.disconnect();
    pair.scrollIntoView({ block: "start" });
  });
  shown.observe(pair, { childList: true, subtree: true });
}

// `submit` is the label of the button; `more` is another action with its label.
function askFor({ target, title, note, ask, action, submit, most, more, optional, value }) {
  const dialog = document.createElement("dialog");
  dialog.className = "ks-dialog";
  dialog.innerHTML = `<form method="dialog"><h2 id="ks-asked" dir="auto"></h2><p class="ks-detail" dir="auto"></p>
    <label><span></span> <textarea rows="4" dir="auto"></textarea></label>
    <div class="ks-actions"><button class="ks-button" value="cancel" formnovalidate>Cancel</button></div></form>`;
  dialog.setAttribute("aria-labelledby", "ks-asked");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = note ?? "";
  dialog.querySelector("label span").textContent = ask;
  const text = dialog.querySelector("textarea");
  text.value = value ?? "";
  text.maxLength = most ?? 2000;
  text.required = optional === undefined;
  const labels = { [action]: submit, ...(more ? Object.fromEntries([more.split("|")]) : {}) };
  for (const [name, label] of Object.entries(labels)) {
    const button = Object.assign(document.createElement("button"), { value: name, textContent: label });
    button.className = "ks-button";
    dialog.querySelector(".ks-actions").append(button);
  }
  dialog.querySelector(".ks-actions").lastElementChild.classList.add("ks-primary");
  dialog.onclose = () => {
    dialog.remove();
    const chosen = dialog.returnValue;
    if (chosen in labels) trigger("act", { action: chosen, id: target, text: text.value });
  };
  document.body.append(dialog);
  dialog.showModal();
}
