// Buttons send their action to the server; those with a question ask it first.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { copy, action, target, ask, title } = button.dataset;
  if (copy !== undefined) {
    await navigator.clipboard.writeText(copy);
    button.textContent = "Copied";
  } else if (action && (!ask || (await confirmed(title, ask, button.textContent.replace(" …", ""))))) {
    trigger("act", { action, id: target });
  }
});

function confirmed(title, question, label) {
  const dialog = document.createElement("dialog");
  dialog.className = "ks-dialog";
  dialog.innerHTML = `<form method="dialog"><h2 id="ks-confirm-title" dir="auto"></h2><p></p>
    <div class="ks-actions"><button class="ks-button" value="">Cancel</button>
    <button class="ks-button ks-primary" value="yes"></button></div></form>`;
  dialog.setAttribute("aria-labelledby", "ks-confirm-title");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = question;
  dialog.querySelector("[value=yes]").textContent = label;
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    };
  });
}
