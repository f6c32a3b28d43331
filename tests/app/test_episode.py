import html as escaping
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import HOSTILE, Open, Read, assert_literal, write_queued
from tests.app.test_figures import signal
from tests.store.fixture import Shape, write_run, write_segment
from workbench.app.screens import episode as screen
from workbench.app.screens.episode import BYTE_OF, pieces, spelled, transcript, turn_table
from workbench.app.store import Diagnostics
from workbench.app.text import visible
from workbench.app.theme import LIGHT, tint
from workbench.app.trajectories import ranked, worst
from workbench.diagnostics import CATALOGUE
from workbench.store.reader import Reader
from workbench.store.sync import sync

TINY = Shape(steps=4, trajectories=2, turns=2, epochs=2, tokens=0, steps_per_segment=4)
PPO = "ppo-s0-aaaa0000"
WORST = (
    *HOSTILE, "\u202egnp.exe", "\u2066a\u2069", "a\x00b\x1b[2J", "W" * 450, "<" * 400, "</span></div><h1>x</h1>",
    '" onmouseover="alert(1)', "' style='position:fixed", "```sh\nrm -rf\n```", "\\(x\\) \\begin{x}",
    "[a](javascript:x)", "e\u0301" * 50, "שלום", "&quot;", "]]>", "<!-- x", "\u2028", "{{7*7}}", "\ufeff",
)  # fmt: skip


def top(runs: Path, column: str, table: str, where: str) -> str:
    """The step or trajectory of PPO's with the largest value of a column."""
    key = "step" if table == "step" else "trajectory"
    ask = f"SELECT arg_max({key}, {column}) AS n FROM {table} WHERE run_id = '{PPO}' AND {where}"
    return str(Reader(runs).query(ask)["n"].item())


def test_it_opens_at_the_spike_of_the_run_that_fell_and_at_its_culprit(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode")
    low, high = (f"(SELECT onset_{end} FROM run WHERE run_id = '{PPO}')" for end in ("low", "high"))
    step = top(grid, "grad_norm_max", "step", f"step BETWEEN {low} AND {high}")
    assert (app.value("run"), app.value("step")) == (PPO, step)
    assert app.value("trajectory") == top(grid, "gradient_share", "trajectory", f"step = {step}")


def test_it_takes_its_view_from_the_address_and_ignores_what_that_gets_wrong(open_screen: Open) -> None:
    address = {"run": "st-ppo-s1-aaaa0001", "signal": "ess_frac_min", "step": "7", "rank": "ratio mass",
               "trajectory": "0", "epoch": "1"}  # fmt: skip
    app = open_screen("episode", **address)
    assert {name: app.value(name) for name in address} == address
    assert 'data-tip="' in app.source
    assert "Trajectory 0 has" in app.source
    assert set(re.findall(r"gradient \(epoch (\d)\)", app.source)) == {"1"}
    assert [t["type"] for t in app.figures[1]["data"]].count("bar") == 2
    assert len(app.get("download_button")) == 2
    for address in ({"step": "999"}, {"step": "<b>"}, {"trajectory": "999"}, {"trajectory": "-1"}, {"run": "nope"}):
        source = open_screen("episode", **address).source
        assert "sorl-turns" in source, address
        assert "Ignored in the address: " in source, address


def test_trajectories_without_tokens_say_so_and_name_those_that_have_them(open_screen: Open) -> None:
    shown = open_screen("episode", run=PPO, step="7", trajectory="5").source
    assert "did not keep the tokens of trajectory 5; of this step it kept <a href=" in shown
    assert "&amp;trajectory=0&amp;" in shown
    assert 'data-tip="' not in shown
    assert "sorl-turns" in shown


def test_another_step_begins_at_its_own_culprit_and_a_picked_trajectory_stays(grid: Path, open_screen: Open) -> None:
    app = open_screen("episode", run=PPO, step="7", trajectory="5")
    app.session_state["step picked"] = ["9"]
    app.run()
    assert app.value("trajectory") == top(grid, "gradient_share", "trajectory", "step = 9")
    assert (app.value("step"), app.number_input(key="step").value) == ("9", 9)
    app.session_state["trajectory picked"] = ["3"]
    app.run()
    app.session_state["rank"] = "log-ratio"
    assert app.run().value("trajectory") == "3"


def test_a_run_without_a_step_says_what_is_missing(tmp_path: Path, open_screen: Open) -> None:
    write_queued(tmp_path, "demo")
    write_run(tmp_path, "demo", "b", shape=TINY)  # brings the dictionary
    sync(tmp_path, CATALOGUE)
    assert "No trajectory of step 0 is recorded" in open_screen("episode", tmp_path, run="queued").source


def test_hostile_episodes_are_shown_literally(tmp_path: Path, open_screen: Open) -> None:
    texts = [*HOSTILE, "\u202egnp.exe", "W" * 400, "</span></div><h1>x</h1>", "\x00\x1b[2J"]
    n, folder = len(texts), write_run(tmp_path, "demo", "a", shape=TINY)
    words = [*texts, "<think>", *texts, "</think>", *texts]
    mask = [False] * n + [True] * (n + 2) + [False] * n
    log_ratio = [None] * n + [0.1, *[math.nan] * n, -3.0] + [None] * n
    row = {"run_id": "a", "step": 0, "trajectory": 0}
    token = {"token": words, "token_id": list(range(len(words))), "trained": mask, "turn_index": list(map(int, mask))}
    write_segment(folder, "token", {k: [v] for k, v in (row | token | {"log_ratio": log_ratio}).items()})
    for file in (folder / "segments" / "trajectory").glob("*.parquet"):
        file.unlink()
    row |= dict.fromkeys(("question", "gold", "answer", "ended"), " ".join(texts)) | {"success": False}
    write_segment(folder, "trajectory", {k: [v] for k, v in row.items()} | {"gradient_share": [0.5]})
    sync(tmp_path, CATALOGUE)
    shown = assert_literal(open_screen("episode", tmp_path, run="a", step="0", trajectory="0"))
    assert not [text for text in texts if shown.count(visible(text).strip()) < 5]


def known(*names: str, text: str = "A ratio.") -> Diagnostics:
    row = {"table_name": "turn", "unit": text, "formula": text, "description": text}
    return Diagnostics({f"turn.{name}": row | {"name": name} for name in names})


def turns(**columns: list[Any]) -> list[dict[str, Any]]:
    size = len(next(iter(columns.values())))
    table = {"turn_index": range(1, size + 1), "gradient_share": [0.1] * size} | columns
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def test_the_turns_show_null_as_a_dash_nan_as_nan_what_a_name_means_and_the_turn_with_most_of_the_gradient() -> None:
    source = turn_table(turns(ratio_geo=[None, math.nan, 0.5]), known("ratio_geo", "mismatch"))
    assert source.count(">–<") == 1, "a NULL; a column that none of these turns has is left out"
    for words in ('class="sorl-broken">NaN<', "<td>0.5<", 'title="A ratio. — A ratio."', "sorl-unit"):
        assert words in source
    for shares, heaviest in (([0.1, 0.3, 0.2], ["2"]), ([0.1, math.nan, 0.9], ["2"]), ([None, None], [])):
        source = turn_table(turns(gradient_share=shares), known("gradient_share"))
        assert re.findall(r"<th>turn (\d)</th>", source) == heaviest
        assert source.count("<b>") == len(heaviest)


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        (["<think>", "got", "emil"], ["<think>", " got", " emil"]),  # words
        (["Hello", "Ġworld", "Ċ", "<|im_end|>"], ["Hello", " world", "\n", "<|im_end|>"]),  # byte-level
        (["Ġa", "Ã"], [" a", "\ufffd"]),  # half a character
        (["Ġa", "<|终|>"], [" a", "<|终|>"]),
        (["▁got", "▁em", "il", "<0x0A>", "<0xZZ>"], [" got", " em", "il", "\n", "<0xZZ>"]),  # SentencePiece
        (["got", " emil", "."], ["got", " emil", "."]),
        ([None, None], ["◊", " ◊"]), ([], []), ([""], [""]),
    ],
)  # fmt: skip
def test_tokens_are_spelled_as_a_person_reads_them(tokens: list[str | None], texts: list[str]) -> None:
    assert spelled(tokens) == texts


@given(st.text(min_size=1))
def test_any_text_survives_the_byte_level_alphabet(text: str) -> None:
    character = {byte: character for character, byte in BYTE_OF.items()}
    assert "".join(spelled(["".join(character[byte] for byte in f" {text}".encode())])) == f" {text}"


MEASURED = ("log_prob_behaviour", "log_prob_old", "log_prob", "log_ratio", "entropy", "advantage", "value",
            "gradient_weight")  # fmt: skip
TURN = {"turn_index": 1, "status": "search", "ratio_geo": 0.5, "log_ratio_sum": -2.0, "gradient_share": 0.1, "epoch": 2}


def episode(written: list[str], *, prompt: tuple[str, ...] = ("who", "?"), **changes: Any) -> dict[str, Any]:
    """A row of table `token`: a prompt, then one turn with these tokens."""
    tokens = [*prompt, *written]
    mask = [False] * len(prompt) + [True] * len(written)
    row = {"token": tokens, "token_id": list(range(len(tokens))), "trained": mask, "turn_index": list(map(int, mask))}
    values = {name: [0.1 if m else None for m in mask] for name in MEASURED} | {"clipped": [False] * len(tokens)}
    return row | values | changes


def drawn(row: dict[str, Any], **changes: Any) -> str:
    return transcript(row, [TURN | changes], LIGHT)


def spans(row: dict[str, Any]) -> list[str]:
    """The elements of the written tokens."""
    return drawn(row).split('<span class="sorl-token')[1:]


@pytest.mark.parametrize("text", WORST)
def test_hostile_tokens_are_shown_literally_wherever_they_stand(text: str) -> None:
    found = Read(drawn(episode([text, "x", text], prompt=(text, "?")), status=text))
    assert set(found.tags) <= {"div", "span", "b", "p"}
    assert found.attributes <= {"class", "style", "data-tip", "tabindex"}
    assert found.text.replace("↵\n", "\n").count(visible(text).strip(" ")) >= 3
    table = Read(turn_table(turns(status=[text]), known("status", text=text)))
    assert set(table.tags) <= {"div", "table", "tr", "th", "td", "span", "b"}


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_every_trained_token_is_one_element_with_its_text(written: list[str]) -> None:
    found = Read(drawn(episode(written, prompt=("Ġ",))))
    assert len(found.values("data-tip")) == len(written)
    assert set(found.tags) <= {"div", "span", "b", "p"}


def test_what_was_only_read_is_apart_and_has_no_tint_and_no_numbers() -> None:
    row = episode(["<search>", "x", "</search>", "<information>", "y", "</information>"])
    row["trained"] = [False, False, True, True, True, False, False, False]
    row["turn_index"] = [0, 0, 1, 1, 1, 0, 0, 0]
    parts = drawn(row).split('<div class="sorl-part ')[1:]
    assert [part.split('"')[0] for part in parts] == ["sorl-read", "sorl-written", "sorl-read"]
    assert all("not trained on" in part and "data-tip" not in part for part in (parts[0], parts[2]))
    assert "information" in parts[2]
    made_up = drawn(episode(["<information>", "lie", "</information>"]))
    assert "information, made up" in made_up
    assert made_up.count("not trained on") == 1


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (["<think>", " a", " b", " </think>", " <search>", " c", " </search>", " d", " <answer>", " e", " </answer>"],
         [("think", "<think> a b </think>"), ("search", " <search> c </search>"), ("text", " d"),
          ("answer", " <answer> e </answer>")]),
        (["a", " <", "sea", "rch", ">", "x", "</", "search", ">", " b"],
         [("text", "a"), ("search", " <search>x</search>"), ("text", " b")]),
        (["<think>", " a", " </search>"], [("think", "<think> a </search>")]),
        (["<think>", " a", " <answer>", " b"], [("think", "<think> a"), ("answer", " <answer> b")]),
    ],
)  # fmt: skip
def test_a_turn_is_split_into_thinking_searching_and_answering(texts: list[str], kinds: list[tuple[str, str]]) -> None:
    found = pieces(texts, [True] * len(texts), [1] * len(texts))
    assert [(p.kind, "".join(texts[p.first : p.end])) for p in found] == kinds
    assert {p.turn for p in found} == {1}


def test_a_token_has_the_tint_of_its_log_ratio_and_keeps_its_numbers_and_the_heaviest_is_marked_once() -> None:
    row = episode(["a", "b"], log_ratio=[None, None, -8.405, 0.0], clipped=[False, False, True, False])
    first, second = spans(row)
    assert "background:{};color:{}".format(*(tint(-8.405, LIGHT) or ())) in first
    assert first.startswith(" sorl-clipped")
    assert "style" not in second.split(">")[0]
    for words in ("log-ratio -8.4 nats, ratio 0.000224", "log-prob new 0.1, old 0.1, behaviour 0.1", "clipped: yes"):
        assert words in escaping.unescape(first)
    weights = [None, 9.0, 0.1, -0.5, 0.2]  # 9 of a prompt in the log of another trainer
    tokens = spans(episode(["a", "b", "c"], gradient_weight=weights, log_ratio=[None, None, math.nan, None, 0.1]))
    assert ["sorl-heaviest" in token for token in tokens] == [False, True, False]
    assert ["sorl-broken" in token for token in tokens] == [True, False, False]
    assert "log-ratio NaN nats, ratio NaN" in tokens[0]
    assert "log-ratio – nats, ratio –" in tokens[1]


def test_tint_box_and_numbers_are_those_of_one_epoch() -> None:
    old = [None, None, -1.0, -1.0]
    token = episode(["a", "b"], gradient_weight=[None, None, 0.1, 0.3], log_prob_old=old, worst_epoch=0,
                    worst_gradient_weight=[None, None, 9.0, 0.3], worst_log_ratio=[None, None, 6.0, 0.0],
                    worst_clipped=[False, False, True, False])  # fmt: skip
    for epoch, heaviest, log_ratio in ((0, 0, 6.0), (3, 1, 0.1)):
        view = screen.at_epoch(token, epoch, 3)
        assert [("sorl-heaviest" in span) for span in spans(view)] == [heaviest == 0, heaviest == 1]
        assert view["log_ratio"][2] == log_ratio
    assert screen.at_epoch(token, 0, 3)["log_prob"][2] == 5.0
    between = screen.at_epoch(token, 1, 3)
    assert "sorl-heaviest" not in drawn(between)
    assert between["figures"] == "no figures of tokens were kept for epoch 1"
    old = episode(["a", "b"])
    ledger = [turn | {"epoch": epoch} for epoch, turn in enumerate(turns(gradient_share=[0.9, 0.1]))]
    assert (screen.heaviest_epoch(token, ledger), screen.heaviest_epoch(old, ledger)) == (0, 0)
    assert "sorl-heaviest" not in drawn(screen.at_epoch(old, 0, 1)), "its weights are those of another epoch"


SHARES = st.one_of(st.none(), st.floats(0, 1), st.just(math.nan))


@given(
    st.lists(SHARES, min_size=1, max_size=5), st.lists(SHARES, min_size=1, max_size=4),
    st.lists(st.one_of(st.none(), st.floats(-9, 9), st.just(math.nan)), min_size=1, max_size=6), st.integers(0, 4),
)  # fmt: skip
def test_the_sentence_names_the_trajectory_the_turn_and_the_token_of_its_rows(
    trajectories: list[Any], by_turn: list[Any], weights: list[Any], chosen: int
) -> None:
    rows = [{"trajectory": 10 + i, "gradient_share": share} for i, share in enumerate(trajectories)]
    mine = rows[chosen % len(rows)]
    ledger = turns(gradient_share=by_turn, ratio_max=[2.0] * len(by_turn), epoch=[1] * len(by_turn))
    token = episode([f"w{i}" for i in range(len(weights))], prompt=(), gradient_weight=weights)
    said = screen.sentence(rows, mine, ledger, token)
    assert said.startswith(f"Trajectory {mine['trajectory']}")
    finite = [s for s in by_turn if s is not None]
    if finite and all(map(math.isfinite, finite)) and sum(finite) > 0:
        assert (
            f"is in turn {finite.index(max(finite)) + 1 if None not in by_turn else by_turn.index(max(finite)) + 1}"
            in said
        )
    place, factor = screen.heaviest_token(token)
    sizes = sorted((math.inf if math.isnan(w) else abs(w) for w in weights if w is not None), reverse=True)
    assert (f"'w{place}'" in said) == (place is not None and factor >= screen.STANDS)
    if place is not None and factor >= screen.STANDS:
        assert (math.inf if math.isnan(weights[place]) else abs(weights[place])) == sizes[0]
        assert len(sizes) == 1 or sizes[0] >= screen.STANDS * sizes[1]
    elif sizes and sizes[0]:
        assert "No single token stands out" in said


def test_two_episodes_of_a_question_are_told_apart_by_answer_and_turn() -> None:
    one, two = episode(["a", "b"]), episode(["a", "c"])
    told = {"answer": "x", "gold": "y"}
    assert screen.differs(told, one, told | {"answer": "z"}, two) == (
        "The first turn that differs is turn 1 (1 turns here, 1 there). Answers: x here, z there; expected y."
    )
    assert screen.differs(told, one, told, one).startswith("Both wrote the same 1 turns.")


def test_an_episode_that_lacks_training_texts_or_parts_of_its_lists_is_shown() -> None:
    row = {"token": ["a", "b"], "token_id": [1, 2], "trained": None, "turn_index": None, "log_ratio": None}
    assert "not trained on" in drawn(row)
    assert "data-tip" not in drawn(row)
    row = episode(["a", "b"], token=None)
    assert "◊" in drawn(row)
    assert "id 3" in "\n".join(screen.tooltip(3, row))
    row = episode(["a", "b", "c"], trained=[False, False, True], turn_index=[0], log_ratio=[], clipped=[True])
    assert "sorl-token" in transcript(row, [], LIGHT)


def test_the_heading_of_a_turn_says_what_it_did_and_how_far_it_moved() -> None:
    for share, words in ((None, "–"), (0.04, "4 %"), (math.nan, "NaN")):
        text = Read(drawn(episode(["a"]), status="invalid", gradient_share=share)).text
        assert f"Turn 1 · invalid · ratio 0.5 · sum of log-ratios -2 nats · {words} of its update's gradient" in text
        assert "(epoch 2)" in text


def test_endless_episodes_and_tokens_are_cut_and_say_so_and_line_breaks_are_seen() -> None:
    source = drawn(episode(["a"] * (screen.MOST + 500), prompt=()))
    assert f"The first {screen.MOST:,} of {screen.MOST + 500:,} tokens." in source
    assert source.count("data-tip") == screen.MOST
    source = drawn(episode(["W" * 20_000, "a\n"]))
    assert len(source) < 5_000
    assert f"… and {20_000 - screen.LONGEST:,} characters" in source
    assert "a↵\n" in source


@pytest.mark.parametrize(
    ("values", "broken", "onset", "lowest", "step"),
    [
        ([1.0, 9.0, 2.0], (), None, False, 1), ([1.0, 0.2, 2.0], (), None, True, 1),
        ([4.0, 3.0, 9.0], (), (1, 1), False, 1), ([9.0, 1.0, 3.0], (), (1, 2), False, 2),  # at the onset
        ([9.0, None, 3.0], (), (1, 1), False, 0),  # nothing measured at the onset
        ([1.0, None, 9.0], (1,), None, False, 1),  # NaN before all
        ([None, None, None], (), None, False, 2),
    ],
)  # fmt: skip
def test_it_begins_at_the_spike(values: Any, broken: Any, onset: Any, lowest: bool, step: int) -> None:
    assert signal(values, broken=broken, onset=onset, steps=3, lowest=lowest).spike == step


def test_the_ranking_is_by_size_with_nan_first_and_null_last_and_the_chosen_trajectory_is_always_drawn() -> None:
    cases = (("gradient_share", [0.1, None, math.nan, 0.4], [2, 3, 0, 1]), ("worst_log_ratio", [2.0, -5.0], [1, 0]))
    for by, values, order in cases:
        rows = [{"trajectory": place, by: value} for place, value in enumerate(values)]
        store: Any = SimpleNamespace(records=lambda *_, rows=rows, **__: rows)
        assert [r["trajectory"] for r in ranked(store, "a", 0, by)] == order
    rows = [{"trajectory": i} for i in range(20)]
    assert [r["trajectory"] for r in screen.shown(rows, rows[15], 8)] == [*range(7), 15]
    assert [r["trajectory"] for r in screen.shown(rows, rows[3], 8)] == [*range(8)]
    turns = [{"epoch": e, "gradient_share": s} for e, s in ((0, 0.1), (1, 0.4), (2, None))]
    assert worst(turns) == turns[1], "the turn to look at"
    assert math.isnan(worst([*turns, {"epoch": 3, "gradient_share": math.nan}])["gradient_share"])
    assert worst(turns[2:]) is None
