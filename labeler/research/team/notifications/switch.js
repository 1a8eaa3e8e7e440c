// The switch of the browser's notifications, for this browser (notify.js shows them).
const SAYS = {
  unsupported: ["Not available", "This browser shows notifications only on pages with https, or on this machine."],
  denied: ["Blocked", "The browser blocks notifications of this site. Allow them in its settings for this site."],
  on: ["On", "This browser shows a notification when something happens and the page is not in view."],
  off: ["Off", "The title of the page still shows what happened."],
};

function state() {
  if (!("Notification" in window) || !window.isSecureContext) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  return localStorage.getItem("kitestring-notify") === "on" && Notification.permission === "granted" ? "on" : "off";
}

function show() {
  const now = state();
  const [word, text] = SAYS[now];
  element.querySelector("[data-word]").textContent = word;
  element.querySelector("[data-word]").className = `ks-badge ks-${now === "on" ? "good" : now === "denied" ? "warn" : "neutral"}`;
  element.querySelector("[data-text]").textContent = text;
  const button = element.querySelector("button");
  button.hidden = now === "unsupported" || now === "denied";
  button.textContent = now === "on" ? "Turn off" : "Turn on in this browser";
}

element.querySelector("button").addEventListener("click", async () => {
  const turnOn = state() === "off";
  if (turnOn && (await Notification.requestPermission()) !== "granted") return show();
  localStorage.setItem("kitestring-notify", turnOn ? "on" : "off");
  show();
});
show();
