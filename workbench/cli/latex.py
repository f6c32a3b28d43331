r"""A table as a LaTeX tabular (needs `\usepackage{booktabs}`), whatever its cells hold: names of arms are any text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_PLAIN = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
_MATHS = {
    "·": r"\cdot", "×": r"\times", "±": r"\pm", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "∞": r"\infty",
    "→": r"\to", "−": "-", "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon",
    "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau",
}  # fmt: skip
_ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u0327": "c"}


def tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a tabular with rules, the first column left-aligned, the others right."""
    lines = [_line(row) for row in rows]
    columns = "l" + "r" * (len(header) - 1)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _line(header),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _line(row: Sequence[str]) -> str:
    text = " & ".join(escape(cell) for cell in row)
    # After the \\ of the line before, [ would open its optional argument and * would be its starred form.
    return (f"{{}}{text}" if text.startswith(("[", "*")) else text) + r" \\"


def escape(text: str) -> str:
    """`text` as it is read, in characters that any LaTeX typesets; one that has no name there is its code point."""
    return "".join(_character(c) for c in text)


def _character(c: str) -> str:
    if c.isascii():
        return c.translate(_PLAIN)
    if c in _MATHS:
        return f"${_MATHS[c]}$"
    base, *marks = list(unicodedata.normalize("NFD", c))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return f"[U+{ord(c):04X}]"
