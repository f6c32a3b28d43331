import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli.tables import escape, tabular

# What may stand outside a command: an ordinary, an escaped and a named character, an accented letter, a sign.
ORDINARY, ESCAPED, NAMED = r"[^\\{}$&#^_~%<>|\x80-\U0010ffff]", r"\\[&%$\#_{}]", r"\\text[a-z]+\{\}"
HARMLESS = re.compile(rf"""(?:{ORDINARY}|{ESCAPED}|{NAMED}|\\["'`^~rc]\{{[A-Za-z]\}}|\$(?:-|\\[a-z]+)\$)*""")
HOSTILE = [
    r"a & b", "50 %", "$x_1^2$", r"\input{/etc/passwd}", "{", "}}", "~ # |", "<b>", "[2pt]", "* starred", "é ü ç Å",
    "α·β ≤ 1", "日本", "😀", "-- ?` !`", "line\\\\", "", '"quoted"', "a]b", "^^41",
]  # fmt: skip


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_no_text_at_all_is_a_command(text: str) -> None:
    assert HARMLESS.fullmatch(escape(text))


def test_a_text_is_read_as_it_was_written_and_a_cell_is_not_the_argument_of_the_line_break_before_it() -> None:
    assert all(HARMLESS.fullmatch(escape(text)) for text in HOSTILE)
    assert escape(r"50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"
    assert escape("\\x^2~") == r"\textbackslash{}x\textasciicircum{}2\textasciitilde{}"
    assert escape("é · 日") == r"\'{e} $\cdot$ [U+65E5]"
    lines = tabular(["arm", "n"], [["[2pt]", "1"], ["* x", "2"], ["ppo", "3"]]).splitlines()
    assert lines[4:7] == [r"{}[2pt] & 1 \\", r"{}* x & 2 \\", r"ppo & 3 \\"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_typesets_it(tmp_path: Path) -> None:
    table = tabular(["arm", "50 %", "n_x"], [[text, text, "1"] for text in HOSTILE])
    begin = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\tiny\n"
    (tmp_path / "t.tex").write_text(f"{begin}{table}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
