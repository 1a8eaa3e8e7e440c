// The form that queues a file of pairs.  Content of the file is only shown as text.
const form = element.querySelector("form");
const answer = element.querySelector("[role=status]");

function say(tone, title, rows, count) {
  const note = document.createElement("div");
  note.className = `ks-note ks-${tone}`;
  const head = document.createElement("b");
  head.textContent = title;
  note.append(head);
  for (const { line, reason } of rows) {
    const row = document.createElement("div");
    row.textContent = `Line ${line}: ${reason}`;
    note.append(row);
  }
  if (count > rows.length) {
    const more = document.createElement("div");
    more.textContent = `… and ${count - rows.length} more.`;
    note.append(more);
  }
  answer.append(note);
}

function report(found) {
  const added = found.added.comparisons;
  const known = found.known ? `; ${found.known} of the file's pairs were imported before` : "";
  say("good", `${added} ${added === 1 ? "pair" : "pairs"} queued${known}.`, [], 0);
  if (found.skipped_in_all) {
    say("warn", `${found.skipped_in_all} bad rows skipped:`, found.skipped, found.skipped_in_all);
  }
  if (found.warnings_in_all) say("info", "Warnings:", found.warnings, found.warnings_in_all);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [file] = form.elements.file.files;
  answer.replaceChildren();
  if (!file) return say("bad", "Choose a file first.", [], 0);
  const largest = Number(form.dataset.largest);
  if (file.size > largest) {
    const sentence = `The file is larger than ${largest / 1e6} MB. Import it in a terminal.`;
    return say("bad", sentence, [], 0);
  }
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const query = new URLSearchParams({ name: file.name, skip_bad: form.elements.skip.checked });
    const response = await fetch(`/research/upload/pairs?${query}`, { method: "POST", body: file });
    const found = await response.json();
    if (response.ok) report(found);
    else say("bad", found.error, found.rows || [], found.bad || 0);
  } catch {
    say("bad", "The upload failed. Try again.", [], 0);
  } finally {
    button.disabled = false;
  }
});
