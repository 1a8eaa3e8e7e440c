"""Texts of every kind that a response may have, to see and to measure how a page shows them."""

from __future__ import annotations

from storage.records import Message

# Written for this file: common constructs of TeX, amsmath, mathtools, mhchem, cancel and physics notation.
FORMULAS = (
    r"x^2 + y^2 = z^2",
    r"\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}",
    r"\sqrt[3]{1 + \sqrt{2}}",
    r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}",
    r"\prod_{p \text{ prime}} \frac{1}{1 - p^{-s}}",
    r"\int_{-\infty}^{\infty} e^{-x^2} \, dx = \sqrt{\pi}",
    r"\iint_D f \, dA + \oint_C \mathbf{F} \cdot d\mathbf{r}",
    r"\lim_{x \to 0} \frac{\sin x}{x} = 1",
    r"\begin{aligned} a &= b + c \\ &= d + e \end{aligned}",
    r"\begin{align} a &= b \\ c &= d \end{align}",
    r"\begin{align*} x + y &= 1 \\ x - y &= 3 \end{align*}",
    r"\begin{gathered} a + b \\ c \end{gathered}",
    r"\begin{gather*} a + b \\ c \end{gather*}",
    r"\begin{split} a &= b \\ &= c \end{split}",
    r"\begin{equation} E = mc^2 \end{equation}",
    r"f(n) = \begin{cases} n/2 & \text{if } n \text{ is even} \\ 3n + 1 & \text{otherwise} \end{cases}",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
    r"\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}",
    r"\begin{vmatrix} a & b \\ c & d \end{vmatrix} = ad - bc",
    r"\begin{Bmatrix} 1 \end{Bmatrix} \begin{Vmatrix} 2 \end{Vmatrix} \begin{matrix} 3 \end{matrix}",
    r"\bigl(\begin{smallmatrix} a & b \\ c & d \end{smallmatrix}\bigr)",
    r"\left[\begin{array}{cc|c} 1 & 2 & 3 \\ \hline 4 & 5 & 6 \end{array}\right]",
    r"\begin{pmatrix} a_{11} & \cdots & a_{1n} \\ \vdots & \ddots & \vdots \\ a_{m1} & \cdots & a_{mn} \end{pmatrix}",
    r"\boxed{x = 42}",
    r"\cancel{x} + \bcancel{y} + \xcancel{z}",
    r"\frac{\cancel{(x-1)}(x+2)}{\cancel{(x-1)}}",
    r"\ce{2H2 + O2 -> 2H2O}",
    r"\ce{SO4^2- + Ba^2+ <=> BaSO4 v}",
    r"\ce{^{227}_{90}Th+}",
    r"\left( \frac{\displaystyle\sum_{i} x_i}{\prod_j y_j} \right)^{2}",
    r"\left\{ x \in \mathbb{R} \;\middle|\; x > 0 \right\}",
    r"\left\lfloor \frac{n}{2} \right\rfloor + \left\lceil \frac{n}{2} \right\rceil",
    r"\langle \psi | \hat{H} | \phi \rangle",
    r"\Bigl( \bigl( x \bigr) \Bigr) \biggl[ y \biggr]",
    r"\mathbb{N} \subset \mathbb{Z} \subset \mathbb{Q} \subset \mathbb{R} \subset \mathbb{C}",
    r"\mathcal{L}(\theta) = \mathbb{E}_{x \sim \mathcal{D}}[\log p_\theta(x)]",
    r"\mathfrak{g} \quad \mathscr{F} \quad \mathsf{T} \quad \mathtt{x} \quad \mathbf{v} \quad \boldsymbol{\beta}",
    r"\mathrm{d}x \quad \operatorname{softmax}(z)_i \quad \operatorname*{arg\,max}_\theta",
    r"\hat{x} \bar{y} \vec{v} \dot{a} \ddot{b} \tilde{c} \widehat{xyz} \widetilde{abc} \overline{AB} \underline{CD}",
    r"\overbrace{a + b + c}^{3} + \underbrace{d + e}_{2}",
    r"\overset{!}{=} \quad \underset{x}{\min} \quad \stackrel{\text{def}}{=}",
    r"A \xrightarrow{f} B \xleftarrow[g]{h} C",
    r"\alpha \beta \gamma \delta \varepsilon \zeta \eta \vartheta \lambda \mu \xi \rho \sigma \varphi \chi \psi \Omega",
    r"a \le b \ge c \ne d \approx e \equiv f \sim g \propto h \ll i \gg j",
    r"\forall \epsilon > 0 \; \exists \delta > 0 : |x - a| < \delta \implies |f(x) - L| < \epsilon",
    r"A \cup B \cap C \setminus D \subseteq E \notin F \emptyset",
    r"p \land q \lor \lnot r \iff s \vdash t \models u",
    r"\binom{n}{k} = \frac{n!}{k!\,(n-k)!} \quad \dbinom{n}{k} \tbinom{n}{k}",
    r"\nabla \times \mathbf{E} = -\frac{\partial \mathbf{B}}{\partial t}",
    r"f'(x) + g''(x) + h^{(n)}(x)",
    r"a \equiv b \pmod{n} \quad 17 \bmod 5 \quad \gcd(a, b)",
    r"\cfrac{1}{1 + \cfrac{1}{1 + \cfrac{1}{x}}}",
    r"\sum_{\substack{0 \le i \le m \\ 0 < j < n}} P(i, j)",
    r"\text{price: } \$5 \quad 100\% \quad \{a, b\} \quad a\_b \quad A \& B",
    r"{}_nC_k \quad {}^{14}_{6}\mathrm{C} \quad x_{1}^{2} \quad x_{i_{j}}",
    r"\phantom{x} y \quad \smash{y} \quad a \, b \; c \quad d \qquad e \! f",
    r"\textcolor{red}{x} + \color{blue} y",
    r"\dfrac{1}{2} \tfrac{1}{2} \displaystyle \int \textstyle \int",
    r"90^\circ \quad \angle ABC \perp \overrightarrow{AB} \parallel \triangle",
    r"\lVert x \rVert_2 \quad \lvert x \rvert \quad \|A\|_F",
    r"E = mc^2 \tag{1}",
    r"\sqrt{\frac{1}{N} \sum_{i=1}^{N} \left( x_i - \bar{x} \right)^2}",
    r"\dots \ldots \cdots \vdots \ddots",
    r"\textbf{bold} \textit{italic} \texttt{code} \text{if } x \in A",
    r"\pu{1.5 mol/L}",
    r"\begin{multline*} a \\ b \end{multline*}",
    r"\begin{rcases} a \\ b \end{rcases} \begin{dcases} a & b \end{dcases}",
    r"\begin{CD} A @>a>> B \\ @VbVV @AAcA \\ C @= D \end{CD}",
    r"\big| \Big/ \left. \frac{dy}{dx} \right|_{x=0}",
    r"\not\in \not= \not\subset",
    r"\mathring{A} \acute{e} \grave{e} \check{c} \breve{x}",
    r"\sideset{_1^2}{_3^4}\prod",
    r"\bra{x} \ket{y} \braket{x|y} \Set{x|y}",
    r"\iff \to \mapsto \hookrightarrow \rightleftharpoons \xrightleftharpoons{k}",
    r"\S \P \pounds \copyright \degree \aleph \hbar \ell \Re \Im \wp",
    r"\begin{alignedat}{2} a &= b & c &= d \end{alignedat}",
    r"\begin{subarray}{l} a \\ b \end{subarray} \begin{darray}{cc} a & b \end{darray}",
    r"\cancelto{0}{x} + \sout{abc}",
    r"\overleftarrow{x} \underbar{x} \overgroup{AB}",
    r"\xcancel{\frac{a}{b}} \quad \boxed{\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}}",
    r"\ce{CH3-CH2-OH ->[H2SO4][\Delta] CH2=CH2 + H2O}",
    r"\begin{equation} \label{eq:one} a = b \end{equation}",
    r"\text{价格} = 5 \text{ 元}",
)

LANGUAGES = """\
## مرحبا بالعالم

اللغة العربية تُكتب من اليمين إلى اليسار، مع كلمات English وأرقام 1234 و`code(x)` في السطر.

1. أولا: اقرأ النص.
2. ثانيا: اكتب الجواب (بعناية).

> اقتباس قصير عن العلم.

## שלום עולם

עברית נכתבת מימין לשמאל, עם מילים באנגלית כמו Python 3.11 וסוגריים (כאלה).

* פריט ראשון
* פריט שני עם `קוד`

## 你好，世界

中文没有空格，所以一行可以在任何字后面断开。这是一个很长的句子，用来检查换行是否正确，标点符号（如逗号、句号）不应该出现在行首。

1. 第一步：打开文件。
2. 第二步：保存。

## こんにちは

日本語では、漢字とひらがなとカタカナを混ぜて書きます。「カギ括弧」や『二重カギ括弧』もあります。

## नमस्ते दुनिया

हिन्दी देवनागरी लिपि में लिखी जाती है। संयुक्ताक्षर जैसे क्ष, त्र, ज्ञ ठीक दिखने चाहिए।

## Emoji

👩‍👩‍👧‍👦 family, 🇯🇵 flag, 👍🏽 skin tone, ❤️ heart, 🏳️‍🌈 rainbow, 1️⃣ key cap, ☑︎ and ✔️.

~~struck~~, **bold**, *italic*, ***both***, https://example.org/a?b=c and a note[^1].

[^1]: The note stands at the end.
"""

TABLES = """\
| Left | Center | Right |
|:-----|:------:|------:|
| a | b | 1 |
| `x | y` | **bold** | 22 |

| Method | Time | Space | Stable | Comment that is long enough to need several words of room |
|---|---|---|---|---|
| Quick sort | O(n log n) | O(log n) | no | the pivot decides |
| Merge sort | O(n log n) | O(n) | yes | good for linked lists |

| a | b | c | d | e | f | g | h | i | j | k | l | m | n | o | p | q | r | s | t |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
| 1000 | 2000 | 3000 | 4000 | 5000 | 6000 | 7000 | 8000 | 9000 | 10000 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 0 |

| الاسم | القيمة |
|---|---|
| واحد | 1 |

- [x] done
- [ ] open
  1. nested
     > quoted in a list

     | in | list |
     |---|---|
     | x | y |
"""

_CODE = {
    "python": "def f(x: int) -> str:\n    return f'{x!r}'  # a comment\n",
    "javascript": "const f = async (x) => `${await x}`; // a comment\n",
    "typescript": "interface A { readonly x?: number }\nconst a: A = { x: 1 };\n",
    "java": 'public class A {\n    public static void main(String[] a) { System.out.println("x"); }\n}\n',
    "c": '#include <stdio.h>\nint main(void) { return printf("%d\\n", 1) < 0; }\n',
    "cpp": "template <typename T> auto f(T&& x) -> decltype(x) { return std::forward<T>(x); }\n",
    "rust": "fn main() {\n    let v: Vec<_> = (0..3).map(|x| x * 2).collect();\n}\n",
    "go": "package main\n\nfunc main() { defer close(ch) }\n",
    "sql": "SELECT a.id, count(*) FROM a LEFT JOIN b ON a.id = b.a GROUP BY 1 HAVING count(*) > 1;\n",
    "bash": 'for f in *.txt; do\n  grep -q "$1" "$f" && echo "$f"\ndone\n',
    "html": '<!doctype html>\n<p class="a">x &amp; y</p>\n',
    "json": '{"a": [1, 2.5, null, true], "b": {"c": "d"}}\n',
}
CODE = "".join(f"`{name}`:\n\n```{name}\n{code}```\n\n" for name, code in _CODE.items()) + (
    "```\n" + "a line of a hundred and eighty characters without a language " * 3 + "\n```\n"
)

MATH = (
    "".join(f"$${latex}$$\n\n" for latex in FORMULAS)
    + "".join(
        f"Inline ${latex}$ here.\n\n"
        for latex in FORMULAS
        if r"\begin{" not in latex and r"\tag" not in latex
    )
    + "$$"
    + " + ".join(f"x_{{{i}}}^2" for i in range(150))
    + "$$\n"
)

_WORDS = "the cat sat on a mat and so did we all as it is now or was".split()  # noqa: SIM905
_SENTENCE = " ".join(_WORDS).capitalize() + ". "
LONG = "".join(
    f"## Part {part}\n\n" + _SENTENCE * 17 + "\n\n* " + _SENTENCE + "\n* " + _SENTENCE * 2 + "\n\n"
    for part in range(62)
)
"""About 20,000 words in 62 parts."""

CHAT = [
    Message(role="system", content="Answer **briefly**."),
    *(
        Message(
            role="assistant" if turn % 2 else "user",
            content=f"Turn {turn}: $x_{{{turn}}}$ and `code`.",
        )
        for turn in range(28)
    ),
    Message(role="user", content="specimen chat: $x$"),
]

SPECIMENS: dict[str, tuple[str | list[Message], str]] = {
    "languages": ("specimen languages: $x$", LANGUAGES),
    "tables": ("specimen tables: $x$", TABLES),
    "code": ("specimen code: $x$", CODE),
    "formulas": ("specimen formulas: $x$", MATH),
    "long": ("specimen long: $x$", LONG),
    "chat": (CHAT, "The end of the chat."),
}
"""Prompt and response by name."""
