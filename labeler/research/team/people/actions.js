// Buttons in tables send their action to the server; "Copy" works without it, "Answer" asks for a text
// first, and "Role" for a role.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } else if (button.dataset.action === "answer") {
    askForAnswer(button.dataset);
  } else if (button.dataset.action === "role") {
    askForRole(button.dataset);
  } else if (button.dataset.action) {
    trigger("act", { action: button.dataset.action, id: button.dataset.target });
  }
});

// The dialog is outside the table, which is drawn again every few seconds.
function askForAnswer({ target, title, comment }) {
  const dialog = document.createElement("dialog");
  dialog.className = "ks-dialog";
  dialog.innerHTML = `<form method="dialog"><h2 id="ks-answer-title" dir="auto"></h2><p class="ks-detail" dir="auto"></p>
    <label>Your answer <textarea rows="5" maxlength="5000" required dir="auto"></textarea></label>
    <div class="ks-actions"><button class="ks-button" value="cancel" formnovalidate>Cancel</button>
    <button class="ks-button" value="answer">Answer only</button>
    <button class="ks-button ks-primary" value="answer-and-clear">Answer and clear</button></div></form>`;
  dialog.setAttribute("aria-labelledby", "ks-answer-title");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = comment;
  const text = dialog.querySelector("textarea");
  dialog.onclose = () => {
    dialog.remove();
    const action = dialog.returnValue;
    if (action.startsWith("answer")) trigger("act", { action, id: target, text: text.value });
  };
  document.body.append(dialog);
  dialog.showModal();
}

const CAN = {
  annotator: "judges pairs",
  adjudicator: "judges pairs, and decides pairs that annotators disagree on",
  viewer: "reads every research page, changes nothing",
  researcher: "reads and changes everything, manages accounts",
};

function askForRole({ target, title, role, roles }) {
  const dialog = document.createElement("dialog");
  dialog.className = "ks-dialog";
  dialog.innerHTML = `<form method="dialog"><h2 id="ks-role-title" dir="auto"></h2><div class="ks-roles"></div>
    <div class="ks-actions"><button class="ks-button" value="cancel">Cancel</button>
    <button class="ks-button ks-primary" value="save">Save role</button></div></form>`;
  dialog.setAttribute("aria-labelledby", "ks-role-title");
  dialog.querySelector("h2").textContent = title;
  for (const name of roles.split(" ")) {
    const label = document.createElement("label");
    const choice = Object.assign(document.createElement("input"), { type: "radio", name: "role", value: name });
    choice.checked = name === role;
    const can = Object.assign(document.createElement("small"), { textContent: CAN[name] ?? "" });
    label.append(choice, ` ${name} `, can);
    dialog.querySelector(".ks-roles").append(label);
  }
  dialog.onclose = () => {
    const chosen = dialog.querySelector("input:checked")?.value;
    dialog.remove();
    if (dialog.returnValue === "save" && chosen !== role) {
      trigger("act", { action: "role", id: target, text: chosen });
    }
  };
  document.body.append(dialog);
  dialog.showModal();
}
