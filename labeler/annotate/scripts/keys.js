// Keys.

// The character that the pressed key has on a US keyboard, for layouts whose own character is not a
// shortcut: digits that need Shift (AZERTY) and other scripts (Cyrillic, Arabic).  A Latin letter
// never counts as another letter, because its key cap says something else.  Nor does the Hungarian ö
// count as 0, which has a key of its own.
function onLatinKeyboard({ key, code, shiftKey }) {
  if (key === "\u061f") return "?"; // the Arabic question mark
  const [, digit, letter] = /^(?:Digit(\d)|Key([A-Z]))$/.exec(code) ?? [];
  if (digit) return shiftKey || key.toLowerCase() === "ö" ? undefined : digit;
  return letter && /^\p{L}$/u.test(key) && !/^\p{Script=Latin}$/u.test(key) ? letter.toLowerCase() : undefined;
}
