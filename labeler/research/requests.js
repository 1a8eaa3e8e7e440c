// What the scripts of the sections share: elements with text, and requests to /research/api.
window.ksRequests = (() => {
  // The text is only ever set as text: names and answers are untrusted.
  function make(tag, css = "", text = "") {
    const made = document.createElement(tag);
    if (css) made.className = css;
    made.textContent = text ?? "";
    return made;
  }

  // Text with an initial capital and a period, as `components.sentence`; a name such as ppo.lr is not capitalized.
  function sentence(text) {
    const told = text.trim(), first = told.split(" ", 1)[0];
    const opened = /^\p{L}+$/u.test(first) ? told[0].toUpperCase() + told.slice(1) : told;
    return !opened || /[.!?…]$/.test(opened) ? opened : `${opened}.`;
  }

  // The answer of /research/api/PATH, to a POST if there is a `body`.  Throws an Error with the sentence of the server,
  // `status`, and `fields`: what is wrong with each value.
  async function ask(path, body) {
    const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let answer;
    try {
      answer = await fetch(`/research/api/${path}`, { cache: "no-store", ...options });
    } catch {
      throw new Error("The connection was lost. Try again.");
    }
    const found = await answer.json().catch(() => ({}));
    if (answer.ok) return found;
    const error = new Error(found.error ? sentence(found.error) : `The server answered ${answer.status}.`);
    throw Object.assign(error, { status: answer.status, fields: found.fields ?? {} });
  }

  // The same as { data } or { error }, the sentence.
  const attempt = (path, body) => ask(path, body).then((data) => ({ data }), ({ message }) => ({ error: message }));

  return { make, ask, attempt };
})();
