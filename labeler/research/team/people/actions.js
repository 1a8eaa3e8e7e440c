// Buttons in tables send their action to the server; "Copy" works without it, "Answer" asks for a text
// first, and "Manage" for what to do.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } else if (button.dataset.action === "answer") {
    askForAnswer(button.dataset);
  } else if (button.dataset.action === "manage") {
    manage(button.dataset);
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

function manage({ target, title, role, roles, disabled, open }) {
  const dialog = document.createElement("dialog");
  dialog.className = "ks-dialog";
  dialog.innerHTML = `<form method="dialog"><h2 id="ks-manage-title" dir="auto"></h2>
    <fieldset class="ks-roles"><legend>Role</legend></fieldset>
    <div class="ks-actions ks-manage"></div>
    <div class="ks-actions"><button class="ks-button" value="cancel">Close</button>
    <button class="ks-button ks-primary" value="role">Save role</button></div></form>`;
  dialog.setAttribute("aria-labelledby", "ks-manage-title");
  dialog.querySelector("h2").textContent = title;
  const choices = dialog.querySelector("fieldset");
  for (const name of disabled ? [] : roles.split(" ").filter(Boolean)) {
    const label = document.createElement("label");
    const choice = Object.assign(document.createElement("input"), { type: "radio", name: "role", value: name });
    choice.checked = name === role;
    const can = Object.assign(document.createElement("small"), { textContent: CAN[name] ?? "" });
    label.append(choice, ` ${name} `, can);
    choices.append(label);
  }
  if (choices.children.length === 1) {
    choices.remove();
    dialog.querySelector("[value=role]").remove();
  }
  const offered = disabled
    ? [["enable", "Enable"]]
    : [["invite", "New invite link"], ["token", "New API token"],
       ...(Number(open) ? [["revoke", "Revoke invites and tokens"]] : []), ["disable", "Disable"]];
  for (const [value, words] of offered) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: words });
    button.onclick = () => dialog.close(value);
    button.className = value === "disable" || value === "revoke" ? "ks-button ks-bad" : "ks-button";
    dialog.querySelector(".ks-manage").append(button);
  }
  dialog.onclose = () => {
    const chosen = dialog.querySelector("input:checked")?.value;
    const action = dialog.returnValue;
    dialog.remove();
    if (action === "role" && chosen !== role) trigger("act", { action, id: target, text: chosen });
    else if (offered.some(([value]) => value === action)) trigger("act", { action, id: target });
  };
  document.body.append(dialog);
  dialog.showModal();
}
