// Buttons in tables send their action to the server; "Copy" works without it, and "Answer" asks for a
// text first.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } else if (button.dataset.action === "answer") {
    askForAnswer(button.dataset);
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
