"""A statement as LaTeX: the formulas of its plain text become formulas of TeX."""

from __future__ import annotations

import re

from overt.theorems.base import Theorem

GREEK = "Gamma|alpha|beta|gamma|delta|epsilon|eps|eta|lam|kappa|nu|omega|pi|psi|rho|sigma|theta"
KNOWN = "log|ln|exp|min|max|sin|cos"
WORDS = "diag|vec|mean|value|dual|sigmoid|Var"
LETTERS = rf"{GREEK}|grad|kron|log|ln|Cyx|Lhat|Xy|qm|mD|tb"
FORMULA = re.compile(
    rf"[\d_^|=<>+*/{{}}\[\]]|\.\.|^\W*(-|o|[b-zB-Z]|{LETTERS})\W*$|^\W*({KNOWN}|{WORDS}|sqrt)\("
    rf"|^\W*([A-Za-z]|{GREEK})\(|^\(a,|^\W*[A-Z]{{1,2}}'|[A-Za-z]'[A-Z(]"
)
PROSE = re.compile(
    r"[(]*[A-Za-z]{2,}('s|s'|(-\w+)+)?[^\w'|]*$|[\w/]+-[a-z]{4,}|(\d|[A-Z]\.\d)'s$|[A-Z]\.\d,?$"
)
NUMBERED = re.compile(
    r"(Algorithm|Theorems?|Lemmas?|Propositions?|Corollary|Figures?|eq\.|section)$"
)
LANGLE, RANGLE = re.compile(r"<(?=[A-Za-z])"), re.compile(r"(?<=[\w')\]*])>(?!=)")
RULES = (
    (rf"(?<![\w])(?!{GREEK})([a-z]{{3,}})_([a-z]{{3,}})", r"\\mathtt{\1\\_\2}"),
    (r"sqrt (\w)", r"sqrt(\1)"),
    (r"\^(-\w+)", r"^{\1}"),
    (rf"(?<!\\)_(?!{GREEK})([A-Za-z0-9]{{2,}})", r"_{\1}"),
    (r"(\d)e(\d)(?!\d)", r"\1e_\2"),
    (r"(?<![\w\\])l2\b", r"\\ell_2"),
    (r"(?<![\w\\])([A-Za-z])(\d+)", r"\1_{\2}"),
    (r"\b([a-z])\*", r"\1^*"),
    (r"'(?!\()", r"^\\top "),
    (r"(?<=[a-z])\.(?=[a-z])", r" \\cdot "),
    (r"<=", r"\\le "), (r">=", r"\\ge "), (r"->", r"\\to "),
    (r"\.\.\.", r"\\ldots "), (r"\.\.", r",\\ldots,"),
    (r" o ", r" \\circ "), (r"\bCyx\b", "C_{yx}"), (r"\bLhat\b", r"\\hat{L}"),
    (r"(?<![A-Za-z\\])lam(?![A-Za-z])", r"\\lambda"),
    (r"(?<![A-Za-z\\])eps(ilon)?(?![A-Za-z])", r"\\varepsilon"),
    (r"(?<![A-Za-z\\])grad(?![A-Za-z])", r"\\nabla"), (r"\bkron\b", r"\\otimes"),
    (rf"(?<![A-Za-z\\])({GREEK}|{KNOWN}|sum|prod)(?![A-Za-z])", r"\\\1"),
    (rf"(?<![A-Za-z\\])({WORDS})(?![A-Za-z])", r"\\operatorname{\1}"),
    (r"(?<![A-Za-z\\])E(?=[\[|_])", r"\\mathbb{E}"),
    (r"(?<![A-Za-z\\{_])([a-z]{3,})(?![A-Za-z}])", r"\\text{ \1 }"),
    (r"  +", " "),
)  # fmt: skip
"""What becomes of the parts of a formula, in this order."""


def latex(statement: Theorem) -> str:
    """Return the statement as a theorem environment, with its assumption and correction."""
    lines = [rf"\begin{{theorem}}[{tex(statement.source)}]\label{{{statement.id}}}"]
    if statement.assumes != "nothing":
        lines.append(f"Assume: {tex(statement.assumes)}.")
    lines.append(f"{tex(statement.claim)}.")
    if statement.formula:
        lines.append(rf"\[{statement.formula}\]")
    lines.append(r"\end{theorem}")
    if statement.correction:
        lines.append(rf"\begin{{remark}}As printed: {tex(statement.correction)}.\end{{remark}}")
    return "\n".join(lines)


def tex(text: str) -> str:
    """Return plain text with its formulas, such as lam sum_i |u_i|^2, in TeX."""
    out: list[str] = []
    words, at = text.split(" "), 0
    while at < len(words):
        end = _end(words, at)
        if end == at:
            out.append(re.sub(r"[_%&#]", r"\\\g<0>", words[at]))
            end = at + 1
        else:
            run = " ".join(words[at:end])
            body = run.rstrip(",;:.")
            lead = "(" if body.count("(") > body.count(")") else ""
            tail = ")" if body.count(")") > body.count("(") else ""
            inner = _formula(body.removeprefix(lead).removesuffix(tail))
            out.append(f"{lead}${inner}${tail}{run[len(body) :]}")
        at = end
    return " ".join(out)


def _end(words: list[str], at: int) -> int:
    """Return where the formula that begins at a word ends; there itself if none does."""
    end = at
    while end < len(words) and _is_formula(words, end):
        end += 1
        # What an operator waits for belongs to it, as in 1 - drop_prob.
        if words[end - 1] in ("=", "-", "+", "/") and end < len(words):
            end += 1
        if words[end - 1][-1] in ",;:." and not _open(words[at:end]):
            break
    closed = end
    while end > at and closed < len(words) and _open(words[at:closed]):
        closed += 1
    aside = words[at].startswith("(") and not _open([words[at][1:], *words[at + 1 : end]])
    return end if aside and any(PROSE.match(w) for w in words[end:closed]) else closed


def _is_formula(words: list[str], at: int) -> bool:
    word = words[at]
    if word in ("sum", "(sum", "a") and at + 1 < len(words):
        return bool(re.match(r"[|v=]|f_|p_", words[at + 1]))
    if at and NUMBERED.match(words[at - 1]):
        return False
    if PROSE.match(word) and not re.fullmatch(rf"\W*({LETTERS})\W*", word):
        return False
    if re.fullmatch(rf"(?!{GREEK})[a-z]{{3,}}_[a-z]{{3,}}\W*", word):  # a name in Python
        return False
    return bool(FORMULA.search(word)) or (word.strip(",;:()") == "A" and at > 0)


def _open(words: list[str]) -> bool:
    text = " ".join(words)
    angles = len(LANGLE.findall(text)) > len(RANGLE.findall(text))
    return angles or any(text.count(a) > text.count(b) for a, b in ("()", "[]", "{}"))


def _formula(text: str) -> str:
    """Return a formula in TeX."""
    text = re.sub(r"[{}]", r"\\\g<0>", text)
    text = RANGLE.sub(r"\\rangle ", LANGLE.sub(r"\\langle ", text))
    for pattern, to in RULES[:2]:
        text = re.sub(pattern, to, text)
    for opening in ("sqrt(", "^(", "_("):
        text = _braced(text, opening)
    for pattern, to in RULES[2:]:
        text = re.sub(pattern, to, text)
    return text


def _braced(text: str, opening: str) -> str:
    """Replace the parentheses after a root, an exponent or an index by braces."""
    while (start := text.find(opening)) >= 0:
        depth, end = 1, start + len(opening)
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        inner = text[start + len(opening) : end - 1]
        sign = "\\sqrt" if opening == "sqrt(" else opening[0]
        text = f"{text[:start]}{sign}{{{inner}}}{text[end:]}"
    return text
