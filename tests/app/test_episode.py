import html as escaping
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from sorl.app import transcript as html
from sorl.app.choices import ranked, worst_epoch
from sorl.app.data import Fall
from sorl.app.episode_data import Side, in_epoch, pieces
from sorl.app.overlay import OVERLAYS, Scale
from sorl.app.queries import Diagnostics
from sorl.app.screens import episode as screen
from sorl.app.sentences.episode import difference, ending, verdict
from sorl.app.text import html_text, visible
from sorl.app.theme import LIGHT, tint
from sorl.app.transcript import transcript, turn_table
from sorl.spec.spelling import BYTE_OF, spelled
from sorl.store.reader import Reader
from tests.app.conftest import HOSTILE, Open, Read, assert_literal, write_queued
from tests.app.test_figures import signal
from tests.store.fixture import Shape, write_run, write_segment, write_status

TINY = Shape(steps=4, trajectories=2, turns=2, epochs=2, tokens=0, texts=False, steps_per_segment=4)
PPO = "ppo-s0-aaaa0000"
SCALE = Scale(OVERLAYS["log-ratio"], 1.0, LIGHT)
WORST = (
    *HOSTILE,
    "\u202egnp.exe",
    "\u2066a\u2069",
    "a\x00b\x1b[2J",
    "W" * 450,
    "<" * 400,
    "</span></div><h1>x</h1>",
    '" onmouseover="alert(1)',
    "' style='position:fixed",
    "```sh\nrm -rf\n```",
    "\\(x\\) \\begin{x}",
    "[a](javascript:x)",
    "e\u0301" * 50,
    "שלום",
    "&quot;",
    "]]>",
    "<!-- x",
    "\u2028",
    "{{7*7}}",
    "\ufeff",
)


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
    address = {
        "run": "st-ppo-s1-aaaa0001",
        "signal": "ess_frac_min",
        "step": "7",
        "rank": "ratio mass",
        "trajectory": "0",
        "epoch": "1",
    }
    app = open_screen("episode", **address)
    assert {name: app.value(name) for name in address} == address
    assert 'class="sorl-token' in app.source
    assert "Trajectory 0 has " in app.source
    assert set(re.findall(r"gradient \(epoch (\d)\)", app.source)) == {"1"}
    assert [t["type"] for t in app.figures[1]["data"]].count("bar") == 2
    assert [one.label for one in app.get("download_button")] == [
        "CSV",
        "CSV",
        "HTML",
    ], "two figures, and the report"
    for address in (
        {"step": "999"},
        {"step": "<b>"},
        {"trajectory": "999"},
        {"trajectory": "-1"},
        {"run": "nope"},
    ):
        assert "sorl-turns" in open_screen("episode", **address).source, address
    for wrong in ("77777", "x", "-1"):
        app = open_screen("episode", run="nope", trajectory=wrong)
        assert html_text("run = 'nope'; shown instead: ppo, seed 0: collapsed after step 15") in app.source
        assert html_text(f"Ignored in the address: trajectory = '{wrong}'.") in app.source
    assert "Ignored" not in open_screen("episode", run=app.value("run"), trajectory="1").source


def test_trajectories_without_tokens_say_so_and_name_those_that_have_them(open_screen: Open) -> None:
    shown = open_screen("episode", run=PPO, step="7", trajectory="5").source
    assert "its tokens were not kept. It " in shown
    assert "Of this step those of trajectory <a href=" in shown
    assert "&amp;trajectory=0&amp;" in shown
    assert 'class="sorl-token' not in shown
    assert "sorl-turns" in shown


def test_another_step_begins_at_its_own_culprit_and_a_picked_trajectory_stays(
    grid: Path, open_screen: Open
) -> None:
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
    said = "No trajectory of this run is recorded: this screen needs tables"
    assert said in open_screen("episode", tmp_path, run="queued").source


def test_hostile_episodes_are_shown_literally(tmp_path: Path, open_screen: Open) -> None:
    texts = [*HOSTILE, "\u202egnp.exe", "W" * 400, "</span></div><h1>x</h1>", "\x00\x1b[2J"]
    n = len(texts)
    folder = write_run(tmp_path, "demo", "a", shape=TINY)
    words = [*texts, "<think>", *texts, "</think>", *texts]
    mask = [False] * n + [True] * (n + 2) + [False] * n
    log_ratio = [None] * n + [0.1, *[math.nan] * n, -3.0] + [None] * n
    row = {"run_id": "a", "step": 0, "trajectory": 0}
    token = {
        "token": words,
        "token_id": list(range(len(words))),
        "trained": mask,
        "turn_index": list(map(int, mask)),
    }
    write_segment(folder, "token", {k: [v] for k, v in (row | token | {"log_ratio": log_ratio}).items()})
    shutil.rmtree(folder / "segments" / "trajectory")
    row |= dict.fromkeys(("question", "gold", "answer", "ended"), " ".join(texts))
    write_segment(folder, "trajectory", row | {"success": False, "gradient_share": 0.5})
    shown = assert_literal(open_screen("episode", tmp_path, run="a", step="0", trajectory="0"))
    assert not [text for text in texts if shown.count(visible(text).strip()) < 5]


def known(*names: str, text: str = "A ratio.") -> Diagnostics:
    row = {"table_name": "turn", "unit": text, "formula": text, "description": text}
    return Diagnostics({f"turn.{name}": row | {"name": name} for name in names})


def turns(**columns: list[Any]) -> list[dict[str, Any]]:
    size = len(next(iter(columns.values())))
    table = {"turn_index": range(1, size + 1), "gradient_share": [0.1] * size} | columns
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def test_the_turns_show_null_as_a_dash_and_mark_the_turn_with_most_of_the_gradient() -> None:
    source = turn_table(turns(ratio_geo=[None, math.nan, 0.5]), known("ratio_geo", "mismatch"))
    assert source.count(">–<") == 1, "a NULL; the column that no turn has a value of is left out"
    for words in (
        'class="sorl-broken">NaN<',
        "<td>0.5<",
        'title="ratio_geo: A ratio. — A ratio."',
        ">geometric turn",
    ):
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
        ([None, None], ["◊", " ◊"]),
        ([], []),
        ([""], [""]),
    ],
)
def test_tokens_are_spelled_as_a_person_reads_them(tokens: list[str | None], texts: list[str]) -> None:
    assert spelled(tokens) == texts


@given(st.text(min_size=1))
def test_any_text_survives_the_byte_level_alphabet(text: str) -> None:
    character = {byte: character for character, byte in BYTE_OF.items()}
    assert "".join(spelled(["".join(character[byte] for byte in f" {text}".encode())])) == f" {text}"


MEASURED = (*html._TOLD, "log_ratio")
TURN = {
    "turn_index": 1,
    "status": "search",
    "ratio_geo": 0.5,
    "log_ratio_sum": -2.0,
    "gradient_share": 0.1,
    "epoch": 2,
}


def episode(written: list[str], *, prompt: tuple[str, ...] = ("who", "?"), **changes: Any) -> dict[str, Any]:
    """A row of table `token`: a prompt, then one turn with these tokens."""
    tokens = [*prompt, *written]
    mask = [False] * len(prompt) + [True] * len(written)
    row = {
        "token": tokens,
        "token_id": list(range(len(tokens))),
        "trained": mask,
        "turn_index": list(map(int, mask)),
    }
    values = {name: [0.1 if m else None for m in mask] for name in MEASURED} | {
        "clipped": [False] * len(tokens)
    }
    return row | values | changes


def drawn(row: dict[str, Any], **changes: Any) -> str:
    return transcript([Side({"name": "step 0"}, [TURN | changes], row)], SCALE)


def spans(row: dict[str, Any]) -> list[str]:
    """The elements of the written tokens."""
    return drawn(row).split('<span class="sorl-token')[1:]


@pytest.mark.parametrize("text", WORST)
def test_hostile_tokens_are_shown_literally_wherever_they_stand(text: str) -> None:
    found = Read(drawn(episode([text, "x", text], prompt=(text, "?")), status=text))
    assert set(found.tags) <= {"div", "span", "b", "p"}
    assert found.attributes <= {"class", "style", "aria-label", "role", "tabindex", "id"}
    assert set(found.values("id")) <= {"turn-0", "turn-1"}
    assert found.text.replace("↵\n", "\n").count(visible(text).strip(" ")) >= 3
    table = Read(turn_table(turns(status=[text]), known("status", text=text)))
    assert set(table.tags) <= {"div", "table", "tr", "th", "td", "span", "b"}


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_every_trained_token_is_one_element_with_its_text(written: list[str]) -> None:
    found = Read(drawn(episode(written, prompt=("Ġ",))))
    assert len(found.values("aria-label")) == len(written)
    assert set(found.tags) <= {"div", "span", "b", "p"}


def test_what_was_only_read_is_apart_and_has_no_tint_and_no_numbers() -> None:
    row = episode(["<search>", "x", "</search>", "<information>", "y", "</information>"])
    row["trained"] = [False, False, True, True, True, False, False, False]
    row["turn_index"] = [0, 0, 1, 1, 1, 0, 0, 0]
    parts = drawn(row).split('<div class="sorl-part ')[1:]
    assert [part.split('"')[0] for part in parts] == ["sorl-read", "sorl-written", "sorl-read"]
    assert all("no gradient" in part and "aria-label" not in part for part in (parts[0], parts[2]))
    assert "tool result" in parts[2]
    made_up = drawn(episode(["<information>", "lie", "</information>"]))
    assert "tool result, made up" in made_up
    assert made_up.count("no gradient") == 1


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (
            [
                "<think>",
                " a",
                " b",
                " </think>",
                " <search>",
                " c",
                " </search>",
                " d",
                " <answer>",
                " e",
                " </answer>",
            ],
            [
                ("think", "<think> a b </think>"),
                ("search", " <search> c </search>"),
                ("text", " d"),
                ("answer", " <answer> e </answer>"),
            ],
        ),
        (
            ["a", " <", "sea", "rch", ">", "x", "</", "search", ">", " b"],
            [("text", "a"), ("search", " <search>x</search>"), ("text", " b")],
        ),
        (["<think>", " a", " </search>"], [("think", "<think> a </search>")]),
        (["<think>", " a", " <answer>", " b"], [("think", "<think> a"), ("answer", " <answer> b")]),
    ],
)
def test_a_turn_is_split_into_thinking_searching_and_answering(
    texts: list[str], kinds: list[tuple[str, str]]
) -> None:
    found = pieces(texts, [True] * len(texts), [1] * len(texts))
    assert [(p.kind, "".join(texts[p.first : p.end])) for p in found] == kinds
    assert {p.turn for p in found} == {1}


def test_a_token_has_the_tint_of_its_log_ratio_and_keeps_its_numbers_and_the_heaviest_is_marked_once() -> (
    None
):
    row = episode(["a", "b"], log_ratio=[None, None, -8.405, 0.0], clipped=[False, False, True, False])
    first, second = spans(row)
    assert "background:{};color:{}".format(*(tint(-8.405, LIGHT) or ())) in first
    assert first.startswith(" sorl-clipped")
    assert "style" not in second.split(">")[0]
    for words in (
        "log-ratio -8.4 nats, ratio 0.000224",
        "log-prob new 0.1, old 0.1, behaviour 0.1",
        "clipped: yes",
    ):
        assert words in escaping.unescape(first)
    weights = [None, 9.0, 0.1, -0.5, 0.2]  # 9 of a prompt in the log of another trainer
    tokens = spans(
        episode(["a", "b", "c"], gradient_weight=weights, log_ratio=[None, None, math.nan, None, 0.1])
    )
    assert ["sorl-heaviest" in token for token in tokens] == [False, True, False]
    assert ["sorl-broken" in token for token in tokens] == [True, False, False]
    assert "log-ratio NaN nats, ratio NaN" in tokens[0]
    assert "log-ratio – nats, ratio –" in tokens[1]


def test_an_episode_that_lacks_training_texts_or_parts_of_its_lists_is_shown() -> None:
    row = {"token": ["a", "b"], "token_id": [1, 2], "trained": None, "turn_index": None, "log_ratio": None}
    assert "no gradient" in drawn(row)
    assert "aria-label" not in drawn(row)
    row = episode(["a", "b"], token=None)
    assert ">3 </span>" in drawn(row)  # its id
    assert "id 3" in html.tooltip(3, row)
    row = episode(["a", "b", "c"], trained=[False, False, True], turn_index=[0], log_ratio=[], clipped=[True])
    assert "sorl-token" in transcript([Side({"name": "step 0"}, [], row)], SCALE)


def test_the_heading_of_a_turn_says_what_it_did_and_how_far_it_moved() -> None:
    for share, words in ((0.04, "4 %"), (math.nan, "NaN")):
        text = Read(drawn(episode(["a"]), status="invalid", gradient_share=share)).text
        assert f"Turn 1 · invalid · ratio 0.5 · {words} of that update's gradient" in text
        assert "(epoch 2)" in text
    unmeasured = Read(drawn(episode(["a"]), status="invalid", gradient_share=None)).text
    assert "Turn 1 · invalid · ratio 0.5 · epoch 2" in unmeasured


def test_endless_episodes_and_tokens_are_cut_and_say_so_and_line_breaks_are_seen() -> None:
    source = drawn(episode(["a"] * (html.MOST + 500), prompt=()))
    assert f"The first {html.MOST:,} of {html.MOST + 500:,} tokens." in source
    assert source.count("aria-label") == html.MOST
    source = drawn(episode(["W" * 20_000, "a\n"]))
    assert len(source) < 5_000
    assert f"… and {20_000 - html.LONGEST:,} characters" in source
    assert "a↵\n" in source


@pytest.mark.parametrize(
    ("values", "broken", "fall", "lowest", "step"),
    [
        ([1.0, 9.0, 2.0], (), None, False, 1),
        ([1.0, 0.2, 2.0], (), None, True, 1),
        ([4.0, 3.0, 9.0], (), Fall(1, 1, 1), False, 1),
        ([9.0, 1.0, 3.0], (), Fall(1, 2, 1), False, 2),  # at the onset
        ([9.0, None, 3.0], (), Fall(1, 1, 1), False, 0),  # nothing measured at the onset
        ([1.0, None, 9.0], (1,), None, False, 1),  # NaN before all
        ([None, None, None], (), None, False, 2),
    ],
)
def test_it_begins_at_the_spike(values: Any, broken: Any, fall: Any, lowest: bool, step: int) -> None:
    assert signal(values, broken=broken, fall=fall, steps=3, lowest=lowest).spike == step


def test_the_ranking_is_by_size_with_nan_first_and_null_last_and_the_chosen_trajectory_is_always_drawn() -> (
    None
):
    cases = (
        ("gradient_share", [0.1, None, math.nan, 0.4], [2, 3, 0, 1]),
        ("worst_log_ratio", [2.0, -5.0], [1, 0]),
    )
    for by, values, order in cases:
        rows = [{"trajectory": place, by: value} for place, value in enumerate(values)]
        store: Any = SimpleNamespace(records=lambda *_, rows=rows, **__: rows)
        assert [r["trajectory"] for r in ranked(store, "a", 0, by)] == order
    rows = [{"trajectory": i} for i in range(20)]
    assert [r["trajectory"] for r in screen.rows_with_chosen(rows, rows[15], 8)] == [*range(7), 15]
    assert [r["trajectory"] for r in screen.rows_with_chosen(rows, {**rows[3], "step": 5}, 8)] == [*range(8)]
    turns = [{"epoch": e, "gradient_share": s} for e, s in ((0, 0.1), (1, 0.4), (2, None))]
    assert worst_epoch([*turns, {"epoch": 3, "gradient_share": math.nan}], None) == 3
    assert worst_epoch(turns, None) == 1
    assert worst_epoch(turns, {"worst_epoch": 0}) == 0, "the box, the table and the headings agree"
    assert [worst_epoch(turns, {"worst_epoch": one}) for one in (None, 9)] == [1, 1]
    assert worst_epoch(turns[2:], None) == 2
    assert (worst_epoch([], {"worst_epoch": 3}), worst_epoch([], {})) == (3, None)


def two_epochs(**changes: Any) -> dict[str, Any]:
    """Tokens a, b, c of turn 1 (the last: 2), whose weights nearly tie in the last epoch; in epoch 0 it is
    all b.
    """
    last = {"gradient_weight": [None, None, 1.2, 1.0, 1.1], "log_ratio": [None, None, 0.1, 0.1, 0.1]}
    worst = {
        "worst_epoch": 0,
        "worst_gradient_weight": [None, None, 0.1, -5.0, 0.1],
        "worst_clipped": [False] * 5,
        "worst_log_ratio": [None, None, 0.1, 6.12, 0.1],
        "turn_index": [0, 0, 1, 1, 2],
    }
    return episode(["a", "b", "c"], **(last | worst | changes))


def test_tint_and_box_are_of_the_epoch_shown_and_a_box_needs_a_token_that_stands_out() -> None:
    boxed = ' sorl-heaviest"'
    (worst, said), (last, none), (between, missing) = (
        in_epoch(two_epochs(), epoch, 3) for epoch in (0, 3, 2)
    )
    assert [boxed in one for one in spans(worst)] == [False, True, False]
    assert "ratio 455" in spans(worst)[1]
    assert "log-prob new 0.1 (epoch 3)" in spans(worst)[1], "it is of the last epoch alone"
    assert boxed not in drawn(last), "1.1 times the next"
    assert ['tabindex="0"' in one for one in spans(last)] == [True, False, False]
    assert not {boxed, "background"} & {words for words in (boxed, "background") if words in drawn(between)}
    assert (said, none) == ("", "")
    assert missing.endswith("in epoch 0 (largest gradient) and 3 (last), not in 2.")
    before, missing = in_epoch(two_epochs(worst_epoch=None), 0, 3)  # a run that recorded the last epoch alone
    assert "background" not in drawn(before)
    assert missing.endswith("recorded in epoch 3 (last), not in 0.")
    assert in_epoch(two_epochs(worst_epoch=None), None, None)[0]["log_ratio"][2] == 0.1, (
        "tokens without a ledger"
    )


def shares(*of_turns: float | None, ratio: float | None = 457.0) -> list[dict[str, Any]]:
    return [
        TURN | {"turn_index": i, "gradient_share": share, "ratio_max": ratio, "epoch": 0}
        for i, share in enumerate(of_turns, 1)
    ]


TIE = dict(in_epoch(two_epochs(), 3, 3)[0])


@pytest.mark.parametrize(
    ("share", "of_turns", "tokens", "says"),
    [
        (
            0.17,
            [0.02, 0.01, 0.05],
            in_epoch(two_epochs(), 0, 3)[0],
            (
                "trajectory 7 has 17 % of this step's gradient, 11 x an equal share; in epoch 0, 62 % of its"
                " gradient is in turn 3, where the largest token ratio is 457; the token is “b” (token 3 of"
                " turn 1), with 50 x the weight of the next."
            ),
        ),
        (
            0.17,
            [0.02, 0.01, 0.03],
            TIE,
            (
                "no turn stands out (turn 3 has the most, 50 %); no token stands out (“a”, token 2 of turn 1,"
                " has 1.1 x the weight of the next)."
            ),
        ),
        (
            0.17,
            [0.02],
            None,
            (
                "all of its gradient is in turn 1, its only one, where the largest token ratio is 457; "
                "its tokens were not kept."
            ),
        ),
        (
            0.17,
            [0.02, math.nan],
            None,
            "in epoch 0, the gradient of turn 2 is NaN; its tokens were not kept.",
        ),
        (
            0.17,
            [0.02, 0.001],
            TIE | {"gradient_weight": [None, None, 1.0, math.nan, 2.0]},
            "the gradient weight of “b” (token 3) is NaN.",
        ),
        (
            0.17,
            [0.02, 0.001],
            TIE | {"token": ["who"], "gradient_weight": [None, None, 1.0, math.inf, math.inf]},
            "the gradient weight of “◊” (token 3) is inf.",
        ),
        (
            0.17,
            [0.02, 0.001],
            TIE | {"gradient_weight": [None, None, 1.0, 1.0, 0.0]},
            "no token stands out (the largest weights are about equal).",
        ),
        (
            0.17,
            [],
            TIE | {"gradient_weight": [9.0, None, 1.0, 0.0, 0.0]},
            "an equal share; the only token with a gradient is “a” (token 2 of turn 1).",
        ),
        (
            0.17,
            [None, None],
            TIE | {"gradient_weight": None},
            "; no gradient of its turns or tokens was recorded.",
        ),
        (0.0, [0.0], TIE, "trajectory 7 has none of this step's gradient."),
        (
            None,
            [0.0],
            TIE,
            (
                "the share of trajectory 7 in this step's gradient was not measured; no gradient of its "
                "turns or tokens was recorded."
            ),
        ),
        (
            math.nan,
            [],
            None,
            (
                "the share of trajectory 7 in this step's gradient is NaN; no gradient of its turns or "
                "tokens was recorded; its tokens were not kept."
            ),
        ),
    ],
    ids=range(12),
)
def test_the_sentence_says_how_much_where_and_if_nothing_stands_out(
    share: Any, of_turns: Any, tokens: Any, says: str
):
    if says.endswith("recorded.") and tokens:
        tokens = tokens | {"gradient_weight": [0.0] * 5}
    assert verdict({"trajectory": 7, "gradient_share": share}, 64, shares(*of_turns), tokens).endswith(says)


def test_a_step_whose_gradient_is_zero_is_not_called_unmeasured() -> None:
    row = {"trajectory": 7, "gradient_share": None, "step_gradient": 0.0}
    says = "this step's gradient is exactly 0, so trajectory 7 has no share of it."
    assert str(verdict(row, 64, shares(None), TIE)) == says


WEIGHTS = st.one_of(st.none(), st.just(0.0), st.just(math.nan), st.floats(1e-6, 1.0))


@given(WEIGHTS, st.lists(WEIGHTS, max_size=5), st.none() | st.lists(WEIGHTS, max_size=6))
def test_a_turn_or_token_is_named_only_where_it_has_twice_the_next(
    share: float | None, of_turns: list[float | None], tokens: list[float | None] | None
) -> None:
    def link(words: str, turn: int | None = None) -> Markup:
        return Markup("[{}{}]").format(words, "" if turn is None else f" = {turn}")

    def named(found: list[float | None]) -> int | None:
        known = {i: one for i, one in enumerate(found) if one is not None}
        if any(math.isnan(one) for one in known.values()):
            return min(i for i, one in known.items() if math.isnan(one))
        order = sorted(known, key=lambda i: -known[i])
        if not order or known[order[0]] == 0:
            return None
        rest = [known[i] for i in order[1:2] if known[i] > 0]
        return order[0] if not rest or float(f"{known[order[0]] / rest[0]:.2g}") >= 2 else None

    row = {"trajectory": 7, "gradient_share": share}
    kept = (
        None
        if tokens is None
        else episode([f"w{i}" for i in range(len(tokens))], prompt=(), gradient_weight=tokens)
    )
    said = str(verdict(row, 4, shares(*of_turns), kept, link))
    assert "[trajectory 7]" in said
    assert said.startswith("the share of") == (share is None or math.isnan(share))
    turn, token = (named(of_turns), named(tokens or [])) if share != 0 else (None, None)
    assert re.findall(r"\[turn (\d) = (\d)\]", said) == ([] if turn is None else [(str(turn + 1),) * 2])
    assert re.findall(r"\[“w(\d)”\]", said) == ([] if token is None else [str(token)])
    assert ("its tokens were not kept" in said) == (tokens is None and share != 0)
    if kept and share != 0:
        boxed = [place for place, one in enumerate(spans(kept)) if "sorl-heaviest" in one]
        assert boxed == ([] if token is None else [token]), "the sentence and the box agree"


def test_what_an_episode_answered_is_said_so_far_as_it_was_recorded() -> None:
    def said(**row: Any) -> str:
        return Read(
            "".join(map(str, ending(dict.fromkeys(("answer", "gold", "ended", "success")) | row)))
        ).text

    assert said() == " What it answered was not recorded."
    assert said(ended="turns", gold="ulrich") == " It gave no answer, expected ulrich; ended by turns."
    assert said(answer="a", success=True) == " It answered “a” (right)."


def side(
    step: int, written: str | None, *kinds: str, answer: str | None = "x", success: bool | None = False
) -> Side:
    known = [TURN | {"turn_index": i, "status": kind} for i, kind in enumerate(kinds, 1)]
    words = None if written is None else written.split()
    tokens = None if words is None else episode(words, turn_index=[0, 0, *range(1, len(words) + 1)])
    return Side({"name": f"step {step}", "answer": answer, "success": success}, known, tokens)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (
            side(3, "a b", "search", "answer", success=True),
            side(9, "a c d", "search", "invalid", "answer", answer=None),
            (
                "At step 3 it answered “x” (right); at step 9 it gave no answer. 2 turns against 3; the first"
                " that differs is turn 2: answer against invalid."
            ),
        ),
        (
            side(3, "a b", "search", "answer"),
            side(9, "a c", "search", "answer"),
            "Both answered “x” (wrong). Both took 2 turns; the first that differs is turn 2.",
        ),
        (
            side(3, "a b", "search", "answer"),
            side(9, "a", "search"),
            "2 turns against 1; the first that differs is turn 2, which step 9 does not have.",
        ),
        (side(3, "a", "answer"), side(9, "a", "answer"), "Both took 1 turn; they wrote the same."),
        (
            side(3, "a", "answer"),
            side(9, None, "answer"),
            "the same kind of turns, but not all tokens were kept: what they wrote may differ.",
        ),
        (
            side(3, None, "search", "answer"),
            side(9, None, "answer"),
            "the first that differs is turn 1: search against answer.",
        ),
        (side(3, "a", "answer"), side(9, None), "The turns of step 9 were not recorded."),
    ],
)
def test_two_episodes_are_told_apart_by_answer_turns_and_the_first_that_differs(
    one: Side, other: Side, says: str
):
    assert difference(one, other).endswith(says)
    beside = Read(transcript([one, other], SCALE))
    assert "step 3, turn 1" in beside.text
    assert ("The text of step 9 was not kept" in beside.text) == (other.tokens is None)


def test_a_second_episode_with_the_same_question_is_chosen_in_the_address(
    open_screen: Open, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=TINY, collapse=1)
    shutil.rmtree(folder / "segments" / "trajectory")
    for which in (0, 1):
        answers = {
            "step": range(4),
            "answer": [f"at {step}" for step in range(4)],
            "gold": "x",
            "ended": "answer",
        }
        write_segment(
            folder, "trajectory", answers | {"trajectory": which, "question": f"q{which}", "success": False}
        )
    token = {"run_id": "a", "step": 3, "trajectory": 1} | episode(["<answer>", "lie", "</answer>"])
    write_segment(folder, "token", {name: [value] for name, value in token.items()})
    write_status(folder, collapse_step=1)
    here = {"run": "a", "step": "0", "trajectory": "1"}
    app = open_screen("episode", tmp_path, **here, next="a/3/1")
    assert app.value("next") == "a/3/1"
    assert "At step 0 it answered “at 0” (wrong); at step 3 it answered “at 3” (wrong)." in app.source
    assert [one.split(",")[0] for one in app.selectbox(key="next").options] == [
        "no other",
        *(f"step {step} (after the fall)" for step in (3, 2)),
        "step 1 (before the fall)",
    ]
    assert ">Open trajectory 1 of step 3<" in app.source
    assert "Open trajectory" not in open_screen("episode", tmp_path, **here, next="a/2/1").source, (
        "it kept no text"
    )
    assert "Ignored in the address: next" in open_screen("episode", tmp_path, **here, next="a/9/9").source


def test_the_group_of_a_rollout_stands_first_with_rewards_and_advantages(
    open_screen: Open, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=TINY)
    shutil.rmtree(folder / "segments" / "trajectory")
    for which in range(3):
        rows = {
            "step": range(4),
            "trajectory": which,
            "question": "q0",
            "answer": f"answer {which}",
            "success": which == 1,
            "reward": float(which == 1),
            "advantage": which - 1.0,
        }
        write_segment(folder, "trajectory", rows)
    write_status(folder)
    app = open_screen("episode", tmp_path, run="a", step="2", trajectory="0", next="a/2/1")
    options = app.selectbox(key="next").options
    assert options[1:3] == [
        "step 2, trajectory 1, same group: answered “answer 1” (right), reward 1, advantage 0, no text",
        "step 2, trajectory 2, same group: answered “answer 2” (wrong), reward 0, advantage 1, no text",
    ]
    assert "At step 2 it answered “answer 0” (wrong); at step 2, trajectory 1 it answered" in app.source
