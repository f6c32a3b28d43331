"""Formulas of the dictionary, plain text, set as mathematics: Greek letters, brackets, sub- and superscripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from workbench.app.safe import html_text

_GREEK = {
    "delta": "δ", "eps": "ε", "rho": "ρ", "beta": "β", "gamma": "γ", "lambda": "λ", "sigma": "σ", "tau": "τ",
}  # fmt: skip
_SIGNS = {"+-": "±", "<=": "≤", ">=": "≥", "!=": "≠", "||": "∥", "grad log pi": "∇ log π"}
# In order: what has a sign of its own, the brackets of a mean (tight, and closed by a subscript: a comparison has
# spaces around it), a number, a name with its subscripts, an exponent, a subscript behind a bracket, a minus, the rest.
_PARTS = re.compile(
    r"(?P<sign>\+-|<=|>=|!=|\|\||grad log pi)|(?P<open><(?=\S)(?=.*>_))|(?P<close>>(?=_))"
    r"|(?P<number>\d[\d.]*(?:e-?\d+)?)|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*)"
    r"|\^(?P<exponent>[A-Za-z0-9]+)|(?<=[>|)])_(?P<under>[A-Za-z0-9]+)|(?P<minus>(?<=[ <(])-)|(?P<other>.)",
    re.DOTALL,
)


def formula_html(formula: str) -> str:
    """A formula as HTML with i, sub and sup elements and no other; text that is no formula stays as it is."""
    return "".join(_set(formula))


def _set(formula: str) -> Iterator[str]:
    for part in _PARTS.finditer(formula):
        text = part.group()
        match part.lastgroup:
            case "sign":
                yield _SIGNS[text]
            case "open" | "close":
                yield "⟨" if text == "<" else "⟩"
            case "name":
                yield _name(text, after=formula[part.start() - 1 : part.start()])
            case "exponent":
                yield f"<sup>{_letter(part['exponent'])}</sup>"
            case "under":
                yield f"<sub>{_letter(part['under'])}</sub>"
            case "minus":
                yield "−"
            case _:
                yield html_text(text)


def _name(text: str, after: str) -> str:
    """A letter with one subscript is set so; a longer name with underscores is a column or a setting and stays."""
    base, *under = text.split("_")
    a_word = (text == "a" and after == " ") or (text == "s" and after == "'")  # the article, the critic's
    if a_word or len(under) > 1 or (len(base) > 1 and base not in _GREEK):
        return html_text(text)
    return _letter(base) + "".join(f"<sub>{_letter(word)}</sub>" for word in under)


def _letter(word: str) -> str:
    """A letter is a variable, in italics; a word beside it is not."""
    word = _GREEK.get(word, word)
    return f"<i>{html_text(word)}</i>" if len(word) == 1 and word.isalpha() else html_text(word)
