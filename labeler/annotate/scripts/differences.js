// Word differences: marks the words that only one of the two rendered responses has.

const MAX_CELLS = 4e8; // words of A times words of B that are compared: 20,000 by 20,000 take 50 MB

const segmenter = new Intl.Segmenter(undefined, { granularity: "word" }); // also for scripts without spaces

// The words and signs of a rendered text in order: {key, node, start, end}.  A formula is one word.
function wordsOf(root) {
  const words = [];
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) {
      for (const { segment, index } of segmenter.segment(node.data)) {
        if (segment.trim()) words.push({ key: segment, node, start: index, end: index + segment.length });
      }
    } else if (node.matches(".math")) words.push({ key: node.innerHTML, node });
    else if (!node.matches(".nothing")) for (const child of node.childNodes) visit(child);
  };
  visit(root);
  return words;
}

// Which members of two lists are not in their longest common subsequence, as [Set, Set] of indices;
// null if the lists are too long.  Hyyrö's bit vectors (2004): bit `i` of row `j` is 0 if the
// subsequence of a[..i] and b[..j-1] is longer than that of a[..i-1] and b[..j-1].
function unmatched(a, b) {
  let start = 0;
  let [endA, endB] = [a.length, b.length];
  while (start < endA && start < endB && a[start] === b[start]) start += 1;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const [bits, rows] = [endA - start, endB - start];
  if (bits * rows > MAX_CELLS) return null;
  const width = Math.ceil(bits / 32);
  const table = bitTable(a.slice(start, endA), b.slice(start, endB), width);
  const rises = (row, bit) => !((table[row * width + (bit >> 5)] >>> (bit & 31)) & 1);
  const [onlyA, onlyB] = [new Set(), new Set()];
  let [row, bit] = [rows, bits];
  while (row || bit) {
    if (bit && (!row || !rises(row, bit - 1))) onlyA.add(start + --bit);
    else if (!bit || rises(row - 1, bit - 1)) onlyB.add(start + --row);
    else [row, bit] = [row - 1, bit - 1]; // the same word
  }
  return [onlyA, onlyB];
}

function bitTable(a, b, width) {
  const places = new Map();
  a.forEach((key, place) => places.get(key)?.push(place) ?? places.set(key, [place]));
  const table = new Uint32Array(width * (b.length + 1)).fill(0xffffffff, 0, width);
  const mask = new Uint32Array(width);
  b.forEach((key, row) => {
    mask.fill(0);
    for (const place of places.get(key) ?? []) mask[place >> 5] |= 1 << (place & 31);
    for (let carry = 0, at = row * width, i = 0; i < width; i += 1, at += 1) {
      const before = table[at];
      const sum = before + ((before & mask[i]) >>> 0) + carry;
      carry = sum > 0xffffffff ? 1 : 0;
      table[at + width] = sum | (before & ~mask[i]);
    }
  });
  return table;
}

// From the end, because a split keeps the part of a text node before it.
function markWords(words, chosen) {
  for (let last = words.length - 1; last >= 0; last -= 1) {
    const { node, end } = words[last];
    if (!chosen.has(last)) continue;
    if (end === undefined) {
      node.classList.add("differs");
      continue;
    }
    while (chosen.has(last - 1) && words[last - 1].node === node) last -= 1; // one mark for neighbors
    node.splitText(end);
    const mark = make("mark", "differs");
    const part = node.splitText(words[last].start);
    part.replaceWith(mark);
    mark.append(part);
  }
}

const inWords = (count) => tn(count, "{count} word", "{count} words");

// Mark both responses, or neither; returns the sentence that says what is marked.
function markDifferences(a, b) {
  const [wordsA, wordsB] = [wordsOf(a), wordsOf(b)];
  const only = unmatched(wordsA.map(({ key }) => key), wordsB.map(({ key }) => key));
  if (!only) return t("The responses are too long to compare word by word.");
  markWords(wordsA, only[0]);
  markWords(wordsB, only[1]);
  if (!only[0].size && !only[1].size) return t("Both responses have the same words.");
  return t("Underlined words are in one response only. A: {a}. B: {b}.", { a: inWords(only[0].size), b: inWords(only[1].size) });
}
