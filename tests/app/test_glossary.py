from pathlib import Path

import pytest

from sorl.algorithms import ALGORITHMS, differences
from sorl.app.queries import Diagnostics
from sorl.app.screens.glossary import _EXAMPLE, entries, entry_text, formula_html, rule_picture, search
from sorl.app.text import html_text
from sorl.app.theme import DARK
from sorl.collapse.rule import judge
from sorl.measures import CATALOGUE
from sorl.measures.declare import dictionary
from sorl.objective import KINDS
from sorl.spec import Diagnostic, Level, Unit
from tests.app.conftest import HOSTILE, SMALL, Open, Read, assert_literal, checked
from tests.store.fixture import write_dictionary, write_run


def test_every_diagnostic_has_its_unit_definition_source_and_alarm(open_screen: Open) -> None:
    shown = open_screen("glossary").source
    for d in CATALOGUE:
        for text in (
            f">{d.name}</a>",
            html_text(d.description),
            html_text(d.alarm.reason) if d.alarm else "",
        ):
            assert text in shown
    assert '<a href="https://arxiv.org/abs/2504.20073" rel="noopener noreferrer" target="_blank">' in shown


def test_an_entry_has_an_address_that_opens_on_it_and_what_is_typed_is_in_it(open_screen: Open) -> None:
    app = open_screen("glossary", part="diagnostics", find="grad_norm")
    shown = app.source
    assert shown.index('href="glossary?part=diagnostics&amp;find=grad_norm"') < shown.index(
        "find=grad_norm_max"
    )
    assert "find=entropy" not in shown
    assert app.text_input(key="find").value == "grad_norm"
    app.text_input(key="find").set_value("critic value").run()
    assert app.value("find") == "critic value"
    assert "value_error" in app.source
    app.text_input(key="find").set_value("zero_var").run()
    assert app.get("button_group")[0].options[1:3] == ["Algorithms 0", "Slots 1"]
    assert html_text("Nothing here matches 'zero_var'.") in app.source
    app.text_input(key="find").set_value("").run()
    assert "find" not in app.query_params


def test_algorithms_slots_and_the_collapse_rule_are_explained_without_a_run(
    tmp_path: Path, open_screen: Open
) -> None:
    app = open_screen("glossary", tmp_path, part="algorithms")
    assert [element.value for element in app.latex] == [f"$$\n{a.formula}\n$$" for a in ALGORITHMS.values()]
    assert "Differs from grpo in ratio and stabilise." in app.source
    pairs = ((ALGORITHMS[a.differs_from], a) for a in ALGORITHMS.values() if a.differs_from)
    assert app.source.count("<tr><td><b>") == sum(len(differences(*pair)) for pair in pairs)
    app.text_input(key="find").set_value("so-ppo").run()
    assert len(app.latex) == 2, "by its other name"
    assert "ST-PPO (SO-PPO)" in app.source
    shown = open_screen("glossary", tmp_path, part="slots").source
    assert all(f"<code>{kind}</code>" in shown for kinds in KINDS.values() for kind in kinds)
    assert any("**Onset.**" in m.value for m in open_screen("glossary", tmp_path, part="collapse").markdown)


@pytest.mark.parametrize("find", ["", " ".join(HOSTILE), "x" * 100_000], ids=["nothing", "hostile", "long"])
def test_hostile_searches_and_hostile_dictionaries_stay_text(
    tmp_path: Path, open_screen: Open, find: str
) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    every = [Diagnostic(f"d{i}", Level.STEP, Unit.NONE, text, text, text) for i, text in enumerate(HOSTILE)]
    write_dictionary(folder, every)
    app = open_screen("glossary", tmp_path, find=find)
    assert_literal(app)
    assert find or all(html_text(text) in app.source for text in HOSTILE)


def test_a_search_finds_the_name_first_then_names_like_it_then_texts_with_every_word() -> None:
    columns = dictionary(CATALOGUE)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    every = entries(Diagnostics({f"{row['table_name']}.{row['name']}": row for row in rows}))

    def found(text: str) -> list[str]:
        return [rows[0]["name"] for rows in search(every, text, lambda rows: rows[0]["name"], entry_text)]

    assert found("clip_frac")[0] == "clip_frac"
    assert found("grad_norm")[:3] == ["grad_norm", "grad_norm_after", "grad_norm_max"]
    assert found("dual clip").index("dual_clip_frac") < found("dual clip").index("ratio_max")
    assert found("EFFECTIVE sample") == found("sample effective")
    assert "ess_frac" in found("EFFECTIVE sample")
    assert found("effective nonsense") == []
    assert found("  ") == [rows[0]["name"] for rows in every]
    one = {
        "unit": "nats",
        "description": None,
        "source": "arXiv 2511.20718",
        "table_name": "step",
        "formula": "H",
        "alarm": "above 3: too wide",
    }
    assert entry_text([one]) == "nats arXiv 2511.20718 step H above 3: too wide"


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
        *(
            (text, text)
            for text in ("share of rollouts with an answer", "distinct 4-grams", "1e-5", "held-out")
        ),
    ],
)
def test_a_formula_is_set_as_mathematics_and_words_stay(formula: str, shown: str) -> None:
    assert formula_html(formula) == shown


@pytest.mark.parametrize("text", [*HOSTILE, *(d.formula for d in CATALOGUE)])
def test_no_formula_is_left_half_set_or_becomes_another_element(text: str) -> None:
    shown = formula_html(text)
    parsed = Read(shown)
    assert set(parsed.tags) <= {"i", "sub", "sup"}
    if text not in HOSTILE:
        assert not any(sign in shown for sign in ("^", "⟩_", "∥_", ")_", "||", "+-", "<=", "delta")), shown
        assert parsed.text.count("⟨") == parsed.text.count("⟩"), shown


def test_the_picture_of_the_collapse_rule_shows_what_the_rule_says_of_it(open_screen: Open) -> None:
    (fall,) = judge(_EXAMPLE, episodes=64).drops
    app = open_screen("glossary", part="collapse")
    (figure,) = app.figures
    marks = {trace["name"]: trace for trace in figure["data"]}
    assert (marks["onset, 95 % interval"]["x"], marks["detection"]["x"]) == ([fall.onset], [fall.detection])
    assert marks["best window"]["x"] == list(fall.best_steps or ())
    assert fall.onset < fall.detection
    told = (
        f"here step {fall.onset}:",
        f"here step {fall.detection}:",
        f"({fall.onset_low} to {fall.onset_high})",
    )
    for words in told:
        assert words in app.source
    assert fall.level <= fall.best / 2
    checked(rule_picture(fall, DARK))
