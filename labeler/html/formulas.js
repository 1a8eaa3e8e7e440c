// Typesets the formulas of rendered texts: LaTeX becomes MathML.
//
// The server writes every formula as its source, <span class="math"><code>…</code></span>.  Temml
// (labeler/static) converts it to markup.  This markup is never inserted: it is parsed in an inert
// document and copied element by element, and whatever is not in the tables below leaves the formula
// as its source.

const { typesetAll, typesetEach } = (() => {
const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_LATEX = 4000; // characters of a formula
const MAX_CHEMISTRY = { ce: 1000, pu: 200 }; // characters of a formula with such a command: mhchem's parser is slow
const MAX_CELLS = 2000; // rows times columns, because Temml makes all rows of a table as long as the longest
const MAX_ELEMENTS = 40000; // of all formulas of a call
const MAX_LEVELS = 80; // nested elements
const MAX_TIME = 2000; // milliseconds of a call; no formula within the other limits comes close
const MAX_EM = 10;
const MAX_POINTS = 100;
const MAX_OVERLAP = -2; // em by which a part may move back over the one before it
const UNSUPPORTED = "#badbad"; // the color that Temml gives to what it does not support

// Definitions can repeat themselves without end, and references would need ids of the page.  Temml 0.13
// exchanges the two scripts of \prescript and numbers both lines of multline.
const REFUSED = new RegExp(
  "\\\\(?:[gex]?def|(?:future)?let|global|long|newcommand|renewcommand|providecommand|newenvironment|" +
    "DeclareMathOperator|ref|eqref|prescript)(?![A-Za-z])|\\\\begin *\\{multline\\}",
);

const ELEMENTS = new Set(
  ("math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts " +
    "mprescripts mtable mtr mtd mstyle mpadded mphantom menclose span").split(" "),
);
const CLASSES = new RegExp(
  "^(?:tml-[a-z0-9-]+|(?:chr|wbk)-[a-z-]+|ff-(?:narrow|nudge-left|squash)|menclose|upstrike|downstrike|sout|mathscr|mathcal|" +
    "longdiv-(?:top|arc)|phasor-(?:bottom|angle)|circle-pad|textcircle|actuarial|special-fraction|oldstylenums)$",
);
const BOOLEAN = /^(?:true|false)$/;
const LENGTH = { test: isLength };
const LENGTHS = { test: (value) => value.split(" ").every(isLength) };
const LINE = /^(?:[\d.]+(?:em|px) (?:solid|dashed|double)|0)\b/;
const ATTRIBUTES = {
  display: /^block$/, displaystyle: BOOLEAN, scriptlevel: /^[+-]?[0-3]$/, mathvariant: /^(?:normal|italic|monospace)$/,
  stretchy: BOOLEAN, fence: BOOLEAN, separator: BOOLEAN, accent: BOOLEAN, accentunder: BOOLEAN, largeop: BOOLEAN,
  movablelimits: BOOLEAN, symmetric: BOOLEAN, form: /^(?:prefix|infix|postfix)$/, linebreak: /^newline$/,
  columnalign: /^(?:left|center|right)(?: (?:left|center|right))*$/, rowspacing: LENGTHS, linethickness: LENGTH,
  lspace: LENGTH, rspace: LENGTH, width: LENGTH, height: LENGTH, depth: LENGTH, voffset: LENGTH, minsize: LENGTH,
  maxsize: LENGTH, mathsize: LENGTH,
};
const STYLES = {
  padding: LENGTHS, "padding-top": LENGTH, "padding-bottom": LENGTH, "padding-left": LENGTH, "padding-right": LENGTH,
  "margin-left": LENGTH, left: LENGTH, right: LENGTH, bottom: LENGTH, height: LENGTH,
  width: /^(?:100|90|50|7\.5)%$/, border: LINE, "border-top": LINE, "border-bottom": LINE, "border-left": LINE, "border-right": LINE,
  position: /^(?:relative|absolute)$/, "text-align": /^(?:left|right|center)$/, "math-depth": /^[0-3]$/, "font-weight": /^bold$/,
  transform: /^scaleX\(-1\)$/, "justify-content": /^center$/,
};
// No colors: they could hide a part, and are unreadable in one of the two themes.  The style sheet
// has the display of formulas and draws what "notation" names.
const DROPPED_ATTRIBUTES = new Set(["xmlns", "id", "mathcolor", "mathbackground", "notation"]);
const DROPPED_STYLES = new Set(["color", "display"]);

function isLength(value) {
  const [, number, unit] = /^([+-]?(?:\d+\.?\d*|\.\d+))(em|ex|mu|px|pt|width)?$/.exec(value) ?? [];
  const size = Number(number);
  if (number === undefined || (size && !unit)) return false;
  if (unit === "width") return Math.abs(size) <= 1;
  return unit === "px" || unit === "pt" ? size >= 10 * MAX_OVERLAP && size <= MAX_POINTS : size >= MAX_OVERLAP && size <= MAX_EM;
}

const count = (text, pattern) => text.match(pattern)?.length ?? 0;

function isWithinLimits(latex) {
  const cells = (count(latex, /\\\\|\\cr(?![A-Za-z])|\\newline/g) + 1) * (count(latex, /&/g) + 1);
  const chemistry = Object.entries(MAX_CHEMISTRY).every(([name, most]) => latex.length <= most || !latex.includes(`\\${name}`));
  return latex.length <= MAX_LATEX && cells <= MAX_CELLS && chemistry && !REFUSED.test(latex);
}

class NotAllowed extends Error {}

function copyAttributes(from, to, enlarged) {
  for (const { name, value } of from.attributes) {
    if (name === "class") {
      const names = value.split(" ").filter(Boolean);
      if (!names.every((each) => CLASSES.test(each))) throw new NotAllowed(`class ${value}`);
      to.classList.add(...names);
    } else if (name === "style") {
      copyStyles(value, to);
    } else if (name === "mathbackground" && from.localName === "mspace") {
      to.classList.add("tml-rule");
    } else if (!DROPPED_ATTRIBUTES.has(name)) {
      if (!ATTRIBUTES[name]?.test(value)) throw new NotAllowed(`${name} ${value}`);
      if (name === "mathsize" && enlarged) throw new NotAllowed("sizes within sizes");
      to.setAttribute(name, value);
    }
  }
}

function copyStyles(text, to) {
  for (const declaration of text.split(";").filter(Boolean)) {
    const [name, value] = declaration.split(":").map((part) => part.trim());
    if (DROPPED_STYLES.has(name)) continue;
    if (!STYLES[name]?.test(value)) throw new NotAllowed(`${name} ${value}`);
    to.style.setProperty(name, STYLES[name] === LINE ? value.split(" ", 2).join(" ") : value);
  }
}

function copy(from, budget, level = 0, enlarged = false) {
  const name = from.localName;
  budget.elements -= 1;
  if (level > MAX_LEVELS || budget.elements < 0 || !ELEMENTS.has(name)) throw new NotAllowed(name);
  const to = name === "span" ? document.createElement("span") : document.createElementNS(MATHML, name);
  copyAttributes(from, to, enlarged);
  for (const child of from.childNodes) {
    const isElement = child.nodeType === Node.ELEMENT_NODE;
    if (isElement) to.append(copy(child, budget, level + 1, enlarged || from.hasAttribute("mathsize")));
    else to.append(child.data);
  }
  return to;
}

// The <math> element, or null if the formula cannot be typeset as a whole.
function typeset(latex, block, budget) {
  try {
    if (!isWithinLimits(latex) || budget.elements < 0 || performance.now() > budget.until) return null;
    const markup = temml.renderToString(latex, {
      displayMode: block, throwOnError: true, errorColor: UNSUPPORTED, trust: false, maxSize: [MAX_EM, MAX_POINTS],
      maxExpand: 1000, wrap: block ? "none" : "tex", xml: true,
    });
    if (markup.includes(UNSUPPORTED)) return null;
    const math = copy(new DOMParser().parseFromString(markup, "application/xml").documentElement, budget);
    if (math.localName !== "math") return null;
    math.dir = "ltr"; // also within Arabic
    return math;
  } catch {
    return null; // Temml throws errors of several kinds, also if it was not loaded.
  }
}

// The source of each formula in these elements and its <math> or null; lazily, to stop at a null.
function* typesetIn(roots) {
  const budget = { elements: MAX_ELEMENTS, until: performance.now() + MAX_TIME };
  for (const source of roots.flatMap((root) => [...root.querySelectorAll(".math > code")])) {
    yield [source, typeset(source.textContent, source.parentElement.matches(".display"), budget)];
  }
}

// Typeset the formulas of these elements if all of them can be typeset; returns whether they could.
function typesetAll(...roots) {
  const found = [];
  for (const [source, math] of typesetIn(roots)) {
    if (!math) return false;
    found.push([source, math]);
  }
  for (const [source, math] of found) source.replaceWith(math);
  return true;
}

// Typeset each formula that can be typeset.
function typesetEach(root) {
  for (const [source, math] of typesetIn([root])) if (math) source.replaceWith(math);
}

return { typesetAll, typesetEach };
})();
