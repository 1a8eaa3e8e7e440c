// Blocks of code have a bar: the language, a switch that wraps long lines, and a button that copies.

const COPIED = 1500; // milliseconds for which the button says whether the code was copied

function codeButton(what, text) {
  const button = make("button", "", text);
  button.type = "button";
  button.dataset.code = what;
  return button;
}

function addCodeBars(root) {
  for (const code of root.querySelectorAll("pre > code")) {
    const pre = code.parentElement;
    const bar = make("div", "code-bar");
    bar.dir = "ltr";
    const name = make("span", "", pre.dataset.language);
    name.setAttribute("aria-hidden", "true"); // it is the name of the block
    bar.append(name, codeButton("wrap", t("Wrap")), codeButton("copy", t("Copy")));
    const block = make("div", "code");
    block.setAttribute("role", "group");
    block.setAttribute("aria-label", pre.dataset.language || t("Code"));
    pre.replaceWith(block);
    block.append(bar, pre);
  }
  showWrapping();
}

// One choice for all blocks, so that both responses are shown alike.
function showWrapping() {
  const wrapped = $(".desk").classList.contains("wrap-code");
  for (const button of $$("[data-code=wrap]")) button.setAttribute("aria-pressed", String(wrapped));
}

function toggleWrapping(button) {
  const before = button.getBoundingClientRect().top;
  const wrapped = $(".desk").classList.toggle("wrap-code");
  remember("wrap", wrapped ? "on" : "off");
  showWrapping();
  scrollBy(0, button.getBoundingClientRect().top - before); // the button stays below the pointer
  announce(wrapped ? t("Long lines of code wrap.") : t("Long lines of code do not wrap."));
}

async function copyCode(button) {
  const copied = await copyText(button.closest(".code").querySelector("code").textContent);
  announce(copied ? t("Code copied.") : t("The code could not be copied."));
  button.textContent = copied ? t("Copied") : t("Not copied");
  setTimeout(() => (button.textContent = t("Copy")), COPIED);
}

// Without TLS, a browser offers no clipboard to a page of another machine, but copies a selection.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const area = make("textarea");
    area.value = text;
    area.setAttribute("aria-hidden", "true");
    $(".desk").append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus?.({ preventScroll: true });
    return copied;
  }
}

$(".desk").classList.toggle("wrap-code", recall("wrap") === "on");
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-code]");
  if (button?.dataset.code === "wrap") toggleWrapping(button);
  if (button?.dataset.code === "copy") copyCode(button);
});
