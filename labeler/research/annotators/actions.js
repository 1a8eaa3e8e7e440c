// Buttons in tables send their action to the server; "Copy" works without it.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } else if (button.dataset.action) {
    trigger("act", { action: button.dataset.action, id: button.dataset.target });
  }
});
