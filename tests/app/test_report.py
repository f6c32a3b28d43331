import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sorl.analysis.results import CURVES, Results, results
from sorl.app.report import content
from sorl.app.report.content import Figure, Report, Section, Table, Text, html, text
from sorl.app.theme import DARK, LIGHT
from sorl.cli import bench
from sorl.cli.report import gather, written
from studies import claims
from tests.analysis.frames import arm, down, frame, on_policy, up
from tests.app.conftest import HOSTILE, SEARCHED, Read, assert_figure_literal, region_arms

report = partial(content.report, claims=claims)
CLIP = {"learn": {"epochs": 4, "staleness": 16, "policy": {"max_grad_norm": 1.0}}}


def demo(n: int = 6, question: str = "Which of the two?", name: str = "demo", suffix: str = "") -> Results:
    runs = frame(
        arm(f"red{suffix}", down(n)),
        arm(f"green{suffix}", up(n), "turn-ppo"),
        on_policy(f"calm{suffix}", up(n)),
        arm(f"clip{suffix}", up(n), **CLIP),
    )
    return results(
        runs, {"experiment": name, "question": question, "toml": f"# {question}\n"}, [f"Note: {question}"]
    )


@pytest.fixture(scope="module")
def shown() -> str:
    return written([demo()], ["sorl report demo"], "html")


def test_the_page_says_everything_in_order(shown: str) -> None:
    assert re.findall(r"<h[12][^>]*>(.*?)</h[12]>", shown) == [
        "demo",
        "The paper&#x27;s claims, one by one",
        "Design",
        "Figures",
        "Tables",
        "Fairness of the comparison",
        "Settings and machine",
        "Make it again",
    ]
    texts = " ".join(Read(shown).texts)
    for words in (
        "Which of the two?",
        "6/6 against 0/6",
        "supported",
        "seeds each (0 to 5)",
        "as rare with clip",
        "Clopper-Pearson",
        "Note: Which of the two?",
        "sorl report demo",
        "learn.policy.max_grad_norm",
    ):
        assert words in texts, words


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(shown: str) -> None:
    found = Read(shown)
    assert not {"src", "srcset", "data", "action"} & found.attributes
    assert all(href.startswith("#") for href in found.values("href"))
    assert not any(name.startswith("on") for name in found.attributes)
    assert "@import" not in shown[: shown.index("<body>")]
    policy = next(attributes["content"] for _, attributes in found.elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in found.scripts[1:]]
    assert len(digests) == 2
    assert all(f"'sha256-{digest}'" in policy for digest in digests)


def test_every_figure_says_n_and_seeds_and_is_there_in_both_palettes(shown: str) -> None:
    found = Read(shown)
    drawn = json.loads(found.scripts[0])
    places = [attrs.get("id") for _, attrs in found.elements if attrs.get("class") == "drawing"]
    assert places == ["f0", None, "f1", "f2", "f3"]
    assert list(drawn) == ["f0", "f1", "f2", "f3"]
    pictures = re.findall(r'<div class="of-(light|dark)"><svg [^>]*fill="([^"]*)"', shown)
    assert pictures == [("light", LIGHT.text), ("dark", DARK.text)]
    for name, palette in (("light", LIGHT), ("dark", DARK)):
        grounds = {both[name]["layout"]["template"]["layout"]["paper_bgcolor"] for both in drawn.values()}
        assert grounds == {palette.background}
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", shown)
    assert len(captions) == len(places)
    assert all("seeds" in caption or "Shares: Newcombe" in caption for caption in captions)
    assert sum("95 %" in caption for caption in captions) == 4  # all but the grid of single runs


def test_many_arms_are_drawn_in_groups_around_the_first() -> None:
    runs = frame(*(arm(f"arm {i}", up(2), world={"noise": i / 20}) for i in range(12)))
    groups = [part["arm"].unique().tolist() for part in content.groups(runs)]
    assert [len(names) for names in groups] == [5, 5, 4]
    assert {names[0] for names in groups} == {"arm 0"}
    assert len({name for names in groups for name in names}) == 12


@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_text_is_shown_literally(bad: str) -> None:
    found = Read(html(Report(bad, [Text(bad)], [Section(bad, [Text(bad, "note")])])))
    visible = bad.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd")
    assert sum(visible in words for words in found.texts) >= 4
    assert found.tags.count("script") == 3
    assert not {"img", "b"} & set(found.tags)


def test_hostile_arms_questions_and_files_end_no_element(hostile: Path) -> None:
    (every,) = gather(hostile, ["hostile"])
    few = every.runs["arm"].isin([HOSTILE[0], HOSTILE[5], HOSTILE[6]]).to_numpy()
    found = [replace(every, table=every.table.filter(few))]
    source = written(found, ["sorl report hostile"], "html")
    page = Read(source)
    assert page.tags.count("script") == 3
    assert not {"img", "b", "iframe"} & set(page.tags)
    assert "<script>alert" not in source
    for both in json.loads(page.scripts[0]).values():
        assert_figure_literal(both["dark"])
    bare = re.sub(r"`+[^`]*`+", "", written(found, ["sorl report hostile"], "md"))
    assert not re.search(r"(?<!\\)(<(script|img|b|a)\b|\$)", bare)


def test_hostile_effects_are_drawn_literally() -> None:
    (drawn,) = claims.effects(claims.verdicts(demo(suffix=" <b>$x$</b>").runs))
    assert_figure_literal(drawn.draw(DARK))
    assert "&lt;b&gt;" in drawn.draw(LIGHT).to_json().replace("\\u003c", "<").replace("\\u0026", "&")


@pytest.mark.parametrize(
    ("words", "escaped"),
    [
        ("a | b", r"a \| b"),
        ("<script>", r"\<script>"),
        ("p < 0.1", "p < 0.1"),
        ("clip_frac", "clip_frac"),
        ("_it_ **b**", r"\_it\_ \*\*b\*\*"),
        ("[a](b)", r"[a\](b)"),
        ("[0, 1]", "[0, 1]"),
        ("# x\ny", r"\# x y"),
        ("$x$ `c`", r"\$x\$ \`c\`"),
        ("&lt;", r"\&lt;"),
        ("\x1b[31m", "\ufffd[31m"),
    ],
)
def test_markdown_escapes_what_would_act_and_nothing_else(words: str, escaped: str) -> None:
    assert text(words) == escaped


def test_an_experiment_without_settings_or_rows_is_told_all_the_same() -> None:
    runs = frame(arm("red", [None, None])).assign(
        config=None,
        slots=None,
        versions=None,
        status="failed",
        outcome=None,
        steps=0,
        planned=None,
        time=0.0,
        event=False,
        step=None,
        seconds=None,
        final_success=None,
        peak_success=None,
        **{f"{name}_curve": None for name in CURVES},
    )
    found = results(runs, {"experiment": "demo", "question": "What?", "toml": ""})
    source = written([found], [], "html")
    assert "No run can be judged yet" in source
    assert "versions not recorded." in source
    assert written([found], [], "md").count("not tested here") == 2 * 9  # by both readings of survival


def test_several_experiments_share_their_claims() -> None:
    told = report([demo(5), demo(5, name="more", suffix="!")], {}, [])
    assert told.title == "demo and more"
    titles = ["The paper's claims, one by one", "demo", "more", "Make it again"]
    assert [s.title for s in told.sections if s.level == 2] == titles
    assert all(isinstance(part, Figure) for s in told.sections if s.title == "Figures" for part in s.parts)


def searched(**columns: Any) -> Results:
    """ppo collapses from a learning rate of 0.2 on, st-ppo nowhere."""
    about = {"experiment": "demo", "question": "How large?", "toml": SEARCHED.replace("[0]", "[0, 1, 2]")}
    rows = [
        arm(name, down(3) if fell else up(3), algorithm, learn={"epochs": 4} | learn)
        for name, algorithm, learn, fell in region_arms()
    ]
    return results(frame(*rows).assign(**columns), about)


def region_of(found: Results) -> Section:
    return next(s for s in report([found], {}, []).sections if s.title == "Stability region")


def test_a_region_is_told_by_its_areas_and_boundaries() -> None:
    section = region_of(searched())
    areas, boundaries, *kept = (part for part in section.parts if isinstance(part, Table))
    assert len(kept) == 2, "the same two tables where only runs that learned and kept it survive"
    assert [row[0] for row in areas.frame.to_numpy()] == ["ppo", "st-ppo"]
    assert str(areas.frame.iloc[1, 1]).startswith("~ ")
    assert [str(name) for name in boundaries.frame][1:] == ["0", "8"]
    assert 0.13 < float(str(boundaries.frame.iloc[0, 1]).split()[0]) < 0.15
    beyond = boundaries.frame.astype(str).iloc[1, 1:]
    assert all(cell.startswith("> 0.4 [0.") and cell.endswith(", -]") for cell in beyond)
    (map_,) = (part for part in section.parts if isinstance(part, Figure))
    assert "36 runs, seeds 0 to 2" in map_.caption
    cells = [one for one in map_.draw(LIGHT).data if one.type == "heatmap" and one.coloraxis]
    assert [len(arm.z) for arm in cells] == [2, 2]  # conditions of each of the two arms


def test_a_region_judges_the_claims_by_its_areas_not_by_its_points_and_other_experiments_have_none() -> None:
    told = report([searched(), demo(5, name="grid")], {}, [])
    assert told.sections[0].title == "The paper's claims, one by one"
    assert "The paper's claims, by stable areas" in [s.title for s in told.sections]
    assert "staleness 8" not in str(told.sections[0].parts)  # the arms of the region
    assert "Note: the arms" not in str(report([searched()], {}, []).sections)
    assert "can be judged yet" in str(region_of(searched(status="queued", outcome=None)).parts)
    assert "Stability region" not in [s.title for s in report([demo(2)], {}, []).sections]


def test_without_a_clone_the_report_has_all_but_the_verdicts_on_the_claims(
    monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "CLONE", tmp_path)
    for found in ([demo(2)], [searched()]):
        shown = written(found, [], "md")
        assert shown.count("need a clone of the repository") == 1
        assert "hypotheses" not in shown
        assert ("## Tables" in shown) or ("## Stability region" in shown)
