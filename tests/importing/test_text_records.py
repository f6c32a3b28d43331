"""Records in the text of consoles, pastes and notebooks: what each is read as, and its step."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.importing.dict_text import DictReader, NotADict
from sorl.importing.logs import Imported, sources
from sorl.spec import InputError
from tests.importing.test_formats import series

BAR = " {done:>2}%|#####     | {done}/100 [00:10<01:00,  1.00it/s]"

# Title -> (text, steps, rewards). Each is the shape of a paste of some trainer, with numbers of our own.
PASTES: dict[str, tuple[str, list[int], list[float]]] = {
    "Python dictionaries of TRL": (
        "{'loss': 0.0, 'grad_norm': 0.5, 'reward': 0.25, 'kl': nan, 'epoch': 0.01}\n"
        "{'loss': 0.1, 'grad_norm': 0.5, 'reward': 0.5, 'kl': 0.1, 'epoch': 0.02}\n"
        "{'train_runtime': 9.5, 'epoch': 0.02}\n",
        [0, 1],
        [0.25, 0.5],
    ),
    "numbers as strings": (
        "{'loss': '0.0', 'reward': '0.25'}\n{'loss': '0.1', 'reward': '5e-1'}\n",
        [0, 1],
        [0.25, 0.5],
    ),
    "dictionaries behind progress bars": (
        f"[run] model = small\n{BAR.format(done=5)}\r{BAR.format(done=10)}"
        "\r{'loss': 0.0, 'reward': 0.25}\n"
        f"{BAR.format(done=15)}\r{BAR.format(done=20)}\r"
        "{'loss': 0.0, 'reward': 0.5}\n",
        [10, 20],
        [0.25, 0.5],
    ),
    "dictionaries over several lines": (
        "{\n  'reward': 0.25,\n  'kl': 0.1\n}\n{\n  'reward': 0.5,\n  'kl': 0.2\n}\n",
        [0, 1],
        [0.25, 0.5],
    ),
    "dictionaries without braces": (
        "'loss': 0.0, 'reward': 0.25, 'global_step/max_steps': '5/99'}\n"
        "'loss': 0.0, 'reward': 0.5, 'global_step/max_steps': '6/99'}\n",
        [5, 6],
        [0.25, 0.5],
    ),
    "a step before a dictionary": (
        "rollout step 3: {'rollout/raw_reward': 0.25}\nrollout step 8: {'rollout/raw_reward': 0.5}\n",
        [3, 8],
        [0.25, 0.5],
    ),
    "JSON behind a logger's prefix": (
        '2026-01-01 10:00:00,123 - INFO - trainer - {"step": 4, "reward": 0.25}\n'
        '[rank0]: 2026-01-01 10:01:00,123 - INFO - trainer - {"step": 5, "reward": 0.5}\n',
        [4, 5],
        [0.25, 0.5],
    ),
    "verl's console in Ray": (
        "(TaskRunner pid=1) step:2 - actor/entropy:0.5 - critic/score/mean:0.25\n"
        "\x1b[36m(TaskRunner pid=1)\x1b[0m step:3 - actor/entropy:0.5 - critic/score/mean:np.float64(0.5)\n",
        [2, 3],
        [0.25, 0.5],
    ),
    "pairs between bars": (
        "02:33:26 SUCCESS Step 28 | Time: 73.77s | Reward: 0.25 | Throughput: 2408.9 tokens/s\n"
        "02:33:26    INFO Starting step 29\n"
        "02:34:38 SUCCESS Step 29 | Time: 72.73s | Reward: 0.5 | Throughput: 2288.1 tokens/s\n",
        [28, 29],
        [0.25, 0.5],
    ),
    "pairs with equals signs in a bar": (
        " 10%|#  | 1/10 [00:07<01:19, 467.13s/it, env/reward=0.25, train/actor/grad_norm=nan]\n"
        " 20%|## | 2/10 [00:14<01:11, 467.13s/it, env/reward=0.5, train/actor/grad_norm=1e-3]\n",
        [1, 2],
        [0.25, 0.5],
    ),
    "pairs that spaces part": (
        "iter 10: loss=0.1 reward=0.25 kl=0.0\niter 20: loss=0.1 reward=0.5 kl=0.0\n",
        [10, 20],
        [0.25, 0.5],
    ),
    "an epoch with a step in it": (
        "Epoch:[1/1](5/9751) loss:0.1 reward:0.25 kl:0.0\nEpoch:[1/1](10/9751) loss:0.1 reward:0.5 kl:0.0\n",
        [5, 10],
        [0.25, 0.5],
    ),
    "bullets under a heading": (
        "========= Step 1/10 =========\nResults:\n  • Loss: 0.0\n  • Avg Reward: 0.25\nTiming:\n"
        "  • generation: 4.95s (13.9%)\n"
        "========= Step 2/10 =========\nResults:\n  • Loss: 0.1\n  • Avg Reward: 0.5\n",
        [1, 2],
        [0.25, 0.5],
    ),
    "a table in Markdown": (
        "My run:\n\n| Step | Training Loss | reward |\n| -- | -- | -- |\n"
        "| 1 | 0.0 | 0.25 |\n| 2 | 0.1 | 0.5 |\n",
        [1, 2],
        [0.25, 0.5],
    ),
    "a table that a notebook shows": (
        "Some words.\nStep\tTraining Loss\treward\tkl\n1\t0.0\t0.25\tNo Log\n2\t0.1\t0.5\t0.1\n",
        [1, 2],
        [0.25, 0.5],
    ),
    "boxes of two columns": (
        "+------------+------+\n| iteration  | 1    |\n| mean_reward | 0.25 |\n"
        "| kl         | 0.1  |\n+------------+------+\n"
        "+------------+------+\n| iteration  | 2    |\n| mean_reward | 0.5  |\n"
        "| kl         | 0.1  |\n+------------+------+\n",
        [1, 2],
        [0.25, 0.5],
    ),
    "two kinds of records of one step": (
        "step 1: {'rollout/reward_mean': 0.25}\nstep 1: {'train/grad_norm': 0.1}\n"
        "step 2: {'rollout/reward_mean': 0.5}\nstep 2: {'train/grad_norm': 0.2}\n",
        [1, 2],
        [0.25, 0.5],
    ),
}


def read(tmp_path: Path, text: str, name: str = "paste.txt") -> Imported:
    path = tmp_path / name
    path.write_text(text)
    (source,) = sources(path)
    (run,) = source.runs()
    return run


@pytest.mark.parametrize("title", PASTES)
def test_a_paste_is_read_with_its_steps(title: str, tmp_path: Path) -> None:
    text, steps, rewards = PASTES[title]
    run = read(tmp_path, text)
    assert series(run, "step.reward") == dict(zip(steps, rewards, strict=True))
    assert run.reading.left_out == 0


@pytest.mark.parametrize("title", PASTES)
def test_a_paste_is_read_whatever_its_file_is_called(title: str, tmp_path: Path) -> None:
    text, steps, rewards = PASTES[title]
    for name in ("paste.jsonl", "paste.json", "paste.log"):
        run = read(tmp_path, text, name)
        assert series(run, "step.reward") == dict(zip(steps, rewards, strict=True))


def test_an_error_that_a_text_ends_in_is_told_before_the_verdict(tmp_path: Path) -> None:
    record = "{'loss': 0.1, 'reward': 0.5}\n"
    trace = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory.\n"
    (warning,) = read(tmp_path, record + record + trace + error).reading.warnings
    assert warning == "the text ends in an error: torch.cuda.OutOfMemoryError: CUDA out of memory. (line 5)"
    assert not read(tmp_path, record + trace + error + record).reading.warnings


def test_only_records_that_get_a_number_are_said_to_be_numbered(tmp_path: Path) -> None:
    """The second line of a wrapped record belongs to the first."""
    wrapped = (
        "step:2 - actor/grad_norm:0.1 - critic/score/mean:0.5\n12 - response_length/mean:9.0 - a/b:1.0\n"
    )
    assert not any("numbered" in note for note in read(tmp_path, wrapped).reading.notes)


def test_a_dictionary_that_is_cut_off_is_counted(tmp_path: Path) -> None:
    run = read(tmp_path, "{'reward': 0.5, 'kl': 0.1}\n{'reward': 0.25, 'kl': 0.1}\n{'reward': 0.5, 'k")
    assert run.reading.left_out == 1
    assert "a dictionary that is cut off, first in line 3" in run.reading.warnings[0]


def test_settings_that_a_trainer_prints_are_read(tmp_path: Path) -> None:
    args = "GRPOConfig(\n_n_gpu=1,\nlearning_rate=1e-06,\nbeta=0.04,\nmax_grad_norm=0.2,\n)\n"
    run = read(tmp_path, args + PASTES["Python dictionaries of TRL"][0])
    assert run.settings["learn.policy.lr"] == 1e-06
    assert run.settings["learn.policy.max_grad_norm"] == 0.2
    config = "{'trainer': {'total_training_steps': 99}, 'actor_rollout_ref': {'actor': {'grad_clip': 0.5}}}\n"
    run = read(tmp_path, config + PASTES["verl's console in Ray"][0])
    assert run.settings["iterations"] == 99
    assert run.settings["learn.policy.max_grad_norm"] == 0.5


def test_lines_of_a_start_up_are_no_records(tmp_path: Path) -> None:
    noise = "max_capture_size: 256, blocks: 9362\nINFO loading weights took 3.5 seconds, memory = 12 GB\n"
    run = read(tmp_path, noise + PASTES["Python dictionaries of TRL"][0])
    assert sorted(series(run, "step.reward")) == [0, 1]
    assert "max_capture_size" not in run.kept.values()


def test_a_text_without_a_known_metric_names_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it has: my_own, other"):
        read(tmp_path, "{'my_own': 1.0, 'other': 2.0}\n{'my_own': 1.0, 'other': 2.0}\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 1}", {"a": 1.0}),
        ('{"a": -1.5e-3, "b": "x"}', {"a": -1.5e-3, "b": "x"}),
        ("{'a': {'b': 2}, 'c': [1, (2, 3)]}", {"a": {"b": 2.0}, "c": [1.0, [2.0, 3.0]]}),
        ("{'a': tensor(0.5, device='cuda:0'), 'b': None, 'c': True}", {"a": 0.5, "b": None, "c": True}),
        ("{a: 1, b.c/d: 2}", {"a": 1.0, "b.c/d": 2.0}),
        ("{'it\\'s': 1}", {"it\\'s": 1.0}),
    ],
)
def test_a_dictionary_of_python_or_json_is_read(text: str, value: object) -> None:
    assert DictReader(text).read_braced(0) == value


@given(st.text(alphabet="{}[]()'\":,=ab1.-e \n\\"))
def test_no_text_makes_the_reader_of_dictionaries_fail_otherwise(text: str) -> None:
    try:
        DictReader("{" + text).read_braced(0)
    except NotADict:
        return


TABLE = """<table border="1" class="dataframe"><thead><tr>
<th>Step</th><th>Training Loss</th><th>reward</th></tr>
</thead><tbody><tr><td>1</td><td>0.0</td><td>0.25</td></tr><tr><td>2</td><td>0.1</td><td>0.5</td></tr></tbody>
</table>"""


def notebook_of(*outputs: dict[str, object]) -> str:
    cells = [{"cell_type": "code", "source": ["train()"], "outputs": list(outputs)}]
    return json.dumps({"cells": cells, "nbformat": 4})


def test_the_table_that_a_notebook_shows_is_read(tmp_path: Path) -> None:
    text = notebook_of(
        {"output_type": "display_data", "data": {"text/html": TABLE.splitlines(keepends=True)}}
    )
    assert series(read(tmp_path, text, "run.ipynb"), "step.reward") == {1: 0.25, 2: 0.5}


def test_what_a_notebook_printed_is_read_where_it_shows_no_table(tmp_path: Path) -> None:
    printed = PASTES["Python dictionaries of TRL"][0].splitlines(keepends=True)
    text = notebook_of({"output_type": "stream", "name": "stdout", "text": printed})
    assert series(read(tmp_path, text, "run.ipynb"), "step.reward") == {0: 0.25, 1: 0.5}


@pytest.mark.parametrize("text", [TABLE, f"<html><body><p>My run</p>{TABLE}</body></html>"])
def test_a_table_of_a_page_is_read(text: str, tmp_path: Path) -> None:
    assert series(read(tmp_path, text, "run.html"), "step.reward") == {1: 0.25, 2: 0.5}


@pytest.mark.parametrize("text", ["{}", '{"cells": 3}', '{"cells": [{"outputs": [3]}]}', "[", "<table><td>"])
def test_a_damaged_notebook_or_page_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    for name in ("run.ipynb", "run.html"):
        with pytest.raises(InputError) as refused:
            read(tmp_path, text, name)
        assert "\n" not in str(refused.value)


def test_the_rewards_of_a_group_are_their_mean_and_their_deviation(tmp_path: Path) -> None:
    lines = ['{"step": 1, "rewards": [1, 0, 0, 1]}', '{"step": 2, "rewards": [true, true]}']
    run = read(tmp_path, "\n".join(lines), "run.jsonl")
    assert series(run, "step.reward") == {1: 0.5, 2: 1.0}
    assert series(run, "step.reward_std") == {1: 0.5, 2: 0.0}


def test_metrics_that_add_up_to_the_reward_are_its_parts(tmp_path: Path) -> None:
    rows = [
        {"step": i, "reward_mean": 3.0 * i, "ndcg": 1.0 * i, "bonus": 2.0 * i, "x": i % 3} for i in range(20)
    ]
    run = read(tmp_path, "\n".join(map(json.dumps, rows)), "run.jsonl")
    assert {"reward_part_ndcg", "reward_part_bonus"} <= set(run.kept)
    assert "the reward is the sum of ndcg and bonus: they are its parts" in run.reading.notes
    for row in rows:
        row["bonus"] += 0.1
    run = read(tmp_path, "\n".join(map(json.dumps, rows)), "other.jsonl")
    assert "reward_part_ndcg" not in run.kept
