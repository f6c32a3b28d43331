from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import HOSTILE
from tests.app.test_safe import read
from workbench.app.formula import formula_html
from workbench.app.safe import visible
from workbench.diagnostics import CATALOGUE


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        ("<H_t>_m", "⟨<i>H</i><sub><i>t</i></sub>⟩<sub><i>m</i></sub>"),
        ("<1[w < 1 - eps_low]>_m", "⟨1[<i>w</i> &lt; 1 − <i>ε</i><sub>low</sub>]⟩<sub><i>m</i></sub>"),
        ("||g||_2", "∥<i>g</i>∥<sub>2</sub>"),
        ("exp(clamp(sum delta of the turn, +-20))", "exp(clamp(sum <i>δ</i> of the turn, ±20))"),
        ("(sum r)^2", "(sum <i>r</i>)<sup>2</sup>"),
        ("V^c = V_old", "<i>V</i><sup><i>c</i></sup> = <i>V</i><sub>old</sub>"),
        ("log_prob - log_prob_old", "log_prob − log_prob_old"),
        ("<-delta>_m", "⟨−<i>δ</i>⟩<sub><i>m</i></sub>"),
        ("the critic's value V", "the critic&#x27;s value <i>V</i>"),
        ("r A grad log pi", "<i>r</i> <i>A</i> ∇ log π"),
    ],
)  # fmt: skip
def test_a_formula_is_set_as_mathematics(formula: str, shown: str) -> None:
    assert formula_html(formula) == shown


@pytest.mark.parametrize(
    "text",
    [
        "share of rollouts with an answer",
        "distinct 4-grams",
        "1e-5",
        "mean searches of a rollout",
        "held-out",
    ],
)
def test_words_and_numbers_stay_as_they_are(text: str) -> None:
    assert formula_html(text) == text


def test_no_declared_formula_is_left_half_set() -> None:
    for d in CATALOGUE:
        shown = formula_html(d.formula)
        parsed = read(shown)
        assert set(parsed.tags) <= {"i", "sub", "sup"}, d.formula
        assert not any(sign in shown for sign in ("^", "⟩_", "∥_", ")_", "||", "+-", "<=", "delta")), shown
        assert parsed.text.count("⟨") == parsed.text.count("⟩"), shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_formulas_stay_text(text: str) -> None:
    assert set(read(formula_html(text)).tags) <= {"i", "sub", "sup"}


@given(st.text(alphabet=st.characters(exclude_characters="<>|+-^_=!", exclude_categories=["Cs"])))
def test_text_without_a_sign_keeps_every_character(text: str) -> None:
    plain = formula_html(text).replace("<i>", "").replace("</i>", "")
    greek = {"delta": "δ", "eps": "ε", "rho": "ρ", "beta": "β", "gamma": "γ", "lambda": "λ", "sigma": "σ", "tau": "τ"}
    if not any(word in text for word in [*greek, "grad"]):
        assert html.unescape(plain) == visible(text)
