"""Bad and hostile input, some 300 kinds of it, ends in bounded time with one clear message, and no name is
obeyed.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from sorl.cli.main import app
from sorl.store.sync import sync
from tests.cli.command import done, sorl, told
from tests.store.fixture import Shape, write_run
from tests.store.processes import ROOT

ESCAPES = "\x1b[31m\x1b]0;title\x07\u202e\u2066\x9b2J\x08\r[bold]red[/] [/] [link=http://x]"
LONG = "n" * 300
QUESTION = 'question = "What does bad input do?"\n'
Make = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Case:
    """`make` puts files into an empty folder and says what to type; `codes` are the exit codes that are
    right.
    """

    name: str
    make: Make
    codes: tuple[int, ...] = (2,)
    grid: bool = False  # wants a runs folder with an experiment in it, as `runs`
    heavy: bool = False  # minutes or gigabytes on a reader without limits


def file(name: str, content: str | bytes, *words: str) -> Make:
    """A file, and the words to type before its name."""

    def make(folder: Path) -> list[str]:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [*words, str(path)]

    return make


def after(change: Callable[[Path], Any], name: str, *words: str) -> Make:
    """Change what lies at `name` in the folder, then type the words, and the path in place of
    the word PATH.
    """

    def make(folder: Path) -> list[str]:
        change(folder / name)
        return [str(folder / name) if word == "PATH" else word for word in words]

    return make


def typed(*words: str) -> Make:
    return lambda folder: list(words)


# What is no file, in the place of one.
NO_FILE: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}

TOML: dict[str, str | bytes] = {
    "nested arrays": "a = " + "[" * 10_000 + "]" * 10_000,
    "nested tables": "a = " + "{a = " * 5000 + "1" + "}" * 5000,
    "a hundred levels": "a = " + "[" * 100 + "]" * 100,
    "a key of many parts": ".".join("a" * 10_000) + " = 1",
    "a table of many parts": "[" + ".".join("a" * 10_000) + "]\n" + "b = 1\n" * 1000,
    "quoted parts": ".".join(['"a"'] * 5000) + " = 1",
    "spaced parts in a table": "x = {" + "a . " * 5000 + "b = 1}",
    "a number of 100 digits": "seeds = [" + "9" * 100 + "]",
    "a number of 5000 digits": "seeds = [" + "9" * 5000 + "]",
    "a binary number": "seeds = [0b" + "1" * 5000 + "]",
    "an unfinished string": 'question = "' + "\\" * 9999,
    "nothing": "",
    "zeros": b"\0" * 4096,
    "random bytes": bytes(range(256)) * 16,
    "half a character": b'question = "\xc3"',
    "more than a megabyte": "# " + "x" * 2**21,
    "a key twice": QUESTION + QUESTION,
    "a date that is none": "a = 2024-13-45",
    "a value of a megabyte": f'question = "What?"\nseeds = "{"x" * 900_000}"',
    "a region without end": f'kind = "region"\n{QUESTION}[region]\nlow = 0.1\nhigh = inf',
    "a region of no number": f'kind = "region"\n{QUESTION}[region]\nlow = nan\nhigh = 1',
    "a region of a million columns": (
        f'kind = "region"\n{QUESTION}[axes]\n"learn.staleness" = {list(range(1000))}\n'
        f'"learn.epochs" = {list(range(1, 1001))}\n[region]\nlow = 1\nhigh = 2'
    ),
} | {
    title: QUESTION + content
    for title, content in {
        "thousands of unknown keys": "".join(f"k{i} = 1\n" for i in range(20_000)),
        "thousands of unknown settings": "[base]\n" + "".join(f"k{i} = 1\n" for i in range(20_000)),
        "a long unknown key": "x" * 100_000 + " = 1",
        "an axis of tables": '[axes]\n"learn.staleness" = [{a = 1}]',
        "a million cells": (
            "[axes]\n"
            + "\n".join(
                f'"{key}" = {list(range(1, 101))}'
                for key in ("learn.staleness", "learn.epochs", "iterations")
            )
        ),
        "more arms than a grid has": "".join(
            f'[[arms]]\nname = "a{i}"\niterations = {i + 1}\n' for i in range(600)
        ),
        "a hundred thousand seeds": f"seeds = {list(range(100_000))}",
        "a path with a NUL": (
            '[base.world]\nkind = "dataset"\ndata = "a\\u0000b"\nretriever = {kind = "http", url = "x"}'
        ),
        "an algorithm that is a list": "[base]\nalgorithm = [1]",
        "an algorithm nested deep": "[base]\nalgorithm = " + '{base = "ppo", ratio = ' * 40 + "1" + "}" * 40,
        "an algorithm with escapes": f"[base]\nalgorithm = {json.dumps(ESCAPES)}",
        "slots of another kind": "[base.slots]\nclip = [1, 2]",
        "a slot that is infinite": "[base.slots]\nratio = {level = inf}",
        "a slot with escapes": f"[base.slots]\nclip = {{kind = {json.dumps(ESCAPES)}}}",
        "a fault of no kind": f"[base.fault]\nkind = {json.dumps(ESCAPES)}\nat_step = 1",
    }.items()
}

# A setting and a value that no run can have: said when the file is read, not by the trainer.
SETTINGS = (
    "seed",
    "threads",
    "iterations",
    "learn.episodes",
    "learn.epochs",
    "learn.staleness",
    "learn.policy.lr",
    "learn.critic.lr",
    "learn.policy.max_grad_norm",
    "learn.entropy_coef",
    "learn.target_kl",
    "learn.policy.weight_decay",
    "engine.temperature",
    "policy.hidden",
    "policy.layers",
    "warmstart.steps",
    "warmstart.lr",
    "warmstart.seed",
    "world.max_turns",
    "world.noise",
    "evaluation.episodes",
    "stop.seconds",
    "compute.processes",
    "collapse.sigmas",
    "record.flush_seconds",
)
VALUES = {
    "infinity": "inf",
    "not a number": "nan",
    "1e300": "1e300",
    "minus 1e300": "-1e300",
    "text": '"\\u001b[31m"',
}
WHOLE = ("seed", "threads", "iterations", "warmstart.seed", "learn.staleness", "compute.processes")


def grids() -> Iterator[Case]:
    for name, content in TOML.items():
        yield Case(f"plan: {name}", file("grid.toml", content, "plan"), heavy="million" in name)
    bad = [(setting, name, value) for setting in SETTINGS for name, value in VALUES.items()]
    bad += [(setting, value, value) for setting in WHOLE for value in ("1e20", str(2**63), "-1")]
    for setting, name, value in bad:
        line = f"seeds = [{value}]" if setting == "seed" else f"base.{setting} = {value}"
        yield Case(f"plan: {setting} is {name}", file("grid.toml", f"{QUESTION}{line}\n", "plan"))
    for word in (
        "learn.policy.lr=inf",
        "seeds=[1e99]",
        f"seeds=[{2**64}]",
        "a.b",
        "=",
        "seeds",
        f"a={ESCAPES}",
        "seeds=" + "[" * 5000,
        f"{'a.' * 5000}b=1",
        "threads=" + "9" * 6000,
    ):
        good = file("grid.toml", QUESTION, "plan")
        yield Case(
            f"plan: --set {word[:30]!r}", lambda folder, good=good, word=word: [*good(folder), "--set", word]
        )
    hostile = QUESTION + "".join(
        f"[[arms]]\nname = {json.dumps(ESCAPES + str(i))}\niterations = {40 + i}\n" for i in range(3)
    )
    for form in ("table", "md", "json"):
        make = file("grid.toml", hostile, "plan", "--format", form)
        yield Case(f"plan: arms with escapes, {form}", make, codes=(0,))
    for title, folder in {"that cannot be made": "/proc/nowhere", "that is a file": "PATH"}.items():
        make = after(lambda path: path.write_text(QUESTION), "grid.toml", "run", "PATH", "--runs", folder)
        yield Case(f"run: a runs folder {title}", make)
    for title, put in NO_FILE.items():
        yield Case(f"plan: {title}", after(put, "grid.toml", "plan", "PATH"))


DEEP = "[" * 10_000 + "]" * 10_000
ZEROS = b"\0" * 999
LOGS: dict[str, dict[str, str | bytes]] = {
    "log.jsonl": {
        "nested deep": DEEP,
        "nested deep in a metric": '{"reward": ' + DEEP + "}\n{}\n",
        "nested tables": '{"a":' * 500 + "1" + "}" * 500 + "\n{}\n",
        "a list": "[1, 2]\n",
        "a word": "reward\nreward\n",
        "nothing": "",
        "zeros": ZEROS,
        "random bytes": bytes(range(255, -1, -1)) * 9,
        "a line of megabytes": '{"reward": "' + "x" * (5 * 2**20) + '"}\n{}\n',
        "only infinite steps": '{"step": 1e999, "reward": 1}\n' * 9,
        "a name for each of thousands of metrics": json.dumps({f"step.m{i}": 1 for i in range(3000)}) + "\n",
        "no metric that is known, with escapes": json.dumps({ESCAPES: 1}) + "\n",
        "an empty object a line": "{}\n" * 99,
    },
    "log.json": {
        "nested deep": DEEP,
        "nested tables": '{"log_history":' * 900 + "1" + "}" * 900,
        "a number": "1",
        "a list of lists": "[[1], [2]]",
        "half of it": '[{"reward": 1',
        "zeros": ZEROS,
        "more than is read": b'["' + b"x" * (33 * 2**20) + b'"]',
    },
    "log.csv": {
        "nothing": "",
        "an empty first line": "\n\n\n",
        "zeros": ZEROS,
        "no metric that is known": "a,b\n1,2\n",
        "thousands of columns": ",".join(f"step.m{i}" for i in range(3000)) + "\n",
        "an open quote": 'step,reward\n1,"' + "x" * 300_000,
        "bytes of no text": b"step,reward\n\xff\xfe\xff,1\n",
        "a header alone": "step,reward\n",
    },
    "log.parquet": {
        "text": "PAR1 no PAR1",
        "nothing": "",
        "zeros": ZEROS,
        "half a footer": b"PAR1\xff\xff\xff\x7fPAR1",
    },
    "log.tsv": {"nothing": "", "escapes": ESCAPES + "\t" + ESCAPES + "\n1\t2\n"},
    "log.txt": {"an ending that says nothing": "step 1"},
}
# What can be read, however odd: it is judged, or refused, and never a traceback.
ODD: dict[str, str | bytes] = {
    "numbers that no float holds": f'{{"step": 1, "reward": {"9" * 400}}}\n' * 9,
    "numbers of 5000 digits": f'{{"step": 1, "reward": {"9" * 5000}}}\n' * 9,
    "infinite rewards": '{"reward": 1e999, "entropy": -1e999}\n' * 30,
    "a step that is infinite": '{"step": 1e999, "reward": 1}\n' + '{"step": 1, "reward": 1}\n' * 9,
    "steps of 300 digits": f'{{"step": {"9" * 300}, "reward": 1}}\n' + '{"step": 1, "reward": 1}\n' * 9,
    "steps that go back": "".join(f'{{"step": {-i}, "reward": {i % 2}}}\n' for i in range(50)),
    "a metric that is text": '{"step": 1, "reward": "high", "entropy": [1]}\n' * 9,
    "every kind of value": "".join(
        json.dumps({"step": i, "reward": v}) + "\n"
        for i, v in enumerate([None, True, "x", {}, [], 1.5, -1, "NaN"])
    ),
    "NaN for all": '{"reward": NaN, "entropy": NaN, "actor/grad_norm": NaN}\n' * 30,
    "one row": '{"reward": 0.5}\n',
    "one step for all": '{"step": 7, "reward": 0.5}\n' * 50,
    "the largest floats": '{"reward": 1.7e308, "entropy": -1.7e308, "actor/grad_norm": 1.7e308}\n' * 50,
}


def logs() -> Iterator[Case]:
    for name, contents in LOGS.items():
        for title, content in contents.items():
            yield Case(f"diagnose {name}: {title}", file(name, content, "diagnose"))
    for title, content in ODD.items():
        for form in ("text", "json", "md"):
            make = file(f"{ESCAPES.replace('/', '')}.jsonl", content, "diagnose", "--format", form)
            yield Case(f"diagnose: {title}, {form}", make, codes=(0, 2))
    for name, (title, put) in itertools.product(
        ("log.jsonl", "log.json", "log.csv", "log.parquet"), NO_FILE.items()
    ):
        yield Case(f"diagnose {name}: {title}", after(put, name, "diagnose", "PATH"))
    ones = pa.array(np.ones(1_000_000))
    for title, columns in {
        # one step: its last row counts
        "a million equal rows in a few bytes": {"step": ones, "reward": ones},
        "a parquet file of text": {"step": ["a"], "reward": ["b"]},
        "a parquet file of lists": {"step": [1], "reward": [[1.0, 2.0]]},
        "a parquet file without rows": {"reward": pa.array([], pa.float64())},
    }.items():
        table = pa.table(columns)
        make = after(partial(pq.write_table, table), "log.parquet", "diagnose", "PATH")
        yield Case(f"diagnose: {title}", make, codes=(0,) if "equal" in title else (2,))
    yield Case(
        "diagnose: a million lines", file("log.jsonl", '{"reward": 1}\n' * 1_000_000, "diagnose"), heavy=True
    )


def names() -> Iterator[Case]:
    bad = {
        "escapes": ESCAPES,
        "a long name": LONG,
        "nothing": "",
        "dots": "../..",
        "a NUL": "a\0b",
        "no text": "a\udcff",
        "a quote": "'\"; DROP TABLE run; --",
    }
    verbs = {
        "ls": (),
        "show": (),
        "compare": (),
        "diagnose": (),
        "replay": ("--step", "0"),
        "rescan": (),
        "report": ("--format", "md"),
        "algorithms": (),
        "diagnostics": (),
        "audit": (),
        "fork": ("--at", "2", "--plan"),
        "run": (),
        "import": (),
        "bench": (),
    }
    for verb, (title, name) in itertools.product(verbs, bad.items()):
        is_read = (verb, title) in (("ls", "nothing"), ("rescan", "nothing"), ("import", "dots"))
        codes = (0, 1, 2) if is_read else (2,)
        yield Case(f"{verb}: {title}", typed(verb, name, *verbs[verb]), codes=codes, grid=True)
    for title, name in bad.items():
        yield from names_in_places(title, name)
    for form in ("table", "csv", "json"):
        query = f"SELECT '{ESCAPES}' AS \"{ESCAPES}\""
        yield Case(
            f"sql: escapes in the answer, {form}",
            typed("sql", query, "--format", form),
            codes=(0,),
            grid=True,
        )


def names_in_places(title: str, name: str) -> Iterator[Case]:
    """A bad name in the places that a verb has for one."""
    yield Case(f"sql: {title}", typed("sql", f"SELECT {name} FROM run"), grid=True)
    yield Case(f"a verb: {title}", typed(f"{name} "))
    yield Case(f"--runs: {title}", typed("ls", "--runs", f"{name}/nowhere"))
    yield Case(f"an argument too many: {title}", typed("show", "a", name), grid=True)
    yield Case(f"eval: {title}", typed("eval", name, "--data", name), grid=True)
    yield Case(f"fork --arm: {title}", typed("fork", "ppo-s0", "--at", "2", "--arm", name), grid=True)
    yield Case(f"audit --step: {title}", typed("audit", "ppo-s0", "--step", name), grid=True)
    yield Case(f"retriever: {title}", typed("retriever", "serve", "--corpus", name, "--port", "1"))
    yield Case(f"app --port: {title}", typed("app", "--port", name))
    yield Case(f"doctor with an argument: {title}", typed("doctor", name), grid=True)
    for unsafe in (name, "../outside", "/outside", ".cache"):
        log = file("log.jsonl", '{"step": 1, "reward": 1}\n' * 9, "import", "--name", unsafe)
        codes = (0,) if title == "a quote" and unsafe == name else (2,)
        yield Case(f"import --name {unsafe[:12]!r}: {title}", log, codes=codes)


def results() -> Iterator[Case]:
    contents = {"nothing": b"", "text": b"hello", "zeros": b"\0" * 999}
    abouts = {"no JSON": "{", "nested deep": "[" * 5000, "a list": "[1]", "another format": '{"format": 99}'}
    for verb in (("report", "--format", "md", "--from"), ("sync", "--from")):
        makes = {title: file("r.parquet", content, *verb) for title, content in contents.items()}
        makes |= {"a pipe": after(os.mkfifo, "r.parquet", *verb, "PATH")}
        makes |= {"a NUL": typed(*verb, "a\0.parquet"), "a long name": typed(*verb, LONG)}
        for title, about in abouts.items():
            table = pa.table({"a": [1]}).replace_schema_metadata({b"sorl_results": about.encode()})
            makes[f"about is {title}"] = after(partial(pq.write_table, table), "r.parquet", *verb, "PATH")
        for title, make in makes.items():
            yield Case(f"{verb[0]} --from: {title}", make, grid=True)


def _special(put: Callable[[Path], Any], *names: str) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        (run / "segments" / "step").mkdir(parents=True)
        for name in names:
            put(run / name)

    return make


def _row(table: str, **columns: Any) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        folder = run / "segments" / table
        row = {"run_id": run.name} | columns
        folder.mkdir(parents=True)
        lists = {name: value if isinstance(value, pa.Array) else [value] for name, value in row.items()}
        pq.write_table(pa.table(lists), folder / "000000.parquet")

    return make


SEVERAL = pa.ListArray.from_arrays(
    pa.array([0, 10_000_001], pa.int32()), pa.array(np.zeros(10_000_001, np.float32))
)
BAD_RUNS: dict[str, Callable[[Path], Any]] = {
    "text for a seed": _row("run", seed="x"),
    "a table in a cell": _row("step", step=1, mine={"a": 1}),
    "a dictionary without names": _row(
        "diagnostic", name=pa.array([None], pa.string()), table_name="turn", level="turn"
    ),
    "a dictionary of roll-ups": _row("diagnostic", name="mine", table_name="span", level="turn"),
    "a step beyond 64 bits": _row("step", step=pa.array([2**64 - 1], pa.uint64())),
    "a folder for a segment": lambda run: (run / "segments" / "step" / "000000.parquet").mkdir(parents=True),
    "pipes": _special(
        os.mkfifo, "segments/step/000000.parquet", "lock", "run.json", "console.log", "../pipe", "../../pipe"
    ),
    "links to themselves": _special(
        NO_FILE["a link to itself"], "segments/step/000000.parquet", "segments/run", "../loop", "../../loop"
    ),
    "a link to what is above it": lambda run: (run.mkdir(parents=True), (run / "up").symlink_to("..")),
    "names with escapes": _row(
        "run", run_id=ESCAPES, experiment="demo", arm=ESCAPES, seed=0, status="finished"
    ),
    "a configuration that is no JSON": _row("run", experiment="demo", arm="a", seed=0, config="{"),
    "more values than a cell has": _row("token", step=1, log_prob=SEVERAL),
}


INDICES: dict[str, Callable[[Path], Any]] = {
    "cut to a tenth": lambda file: os.truncate(file, file.stat().st_size // 10),
    "of random bytes": lambda file: file.write_bytes(bytes(range(256)) * 99),
    "empty": lambda file: os.truncate(file, 0),
    **{title: lambda file, put=put: (file.unlink(), put(file)) for title, put in NO_FILE.items()},
}


def runs_and_indices() -> Iterator[Case]:
    for title, make in BAD_RUNS.items():
        case = after(make, "runs/demo/ill", "compare", "demo")
        yield Case(f"compare: a run with {title}", case, codes=(0,), grid=True)
    for title, change in INDICES.items():
        for words in (["ls"], ["sql", "SELECT avg(ratio_geo) FROM turn"]):
            yield Case(f"{words[0]}: an index {title}", after(change, "runs/sorl.duckdb", *words), grid=True)


SECONDS = 10.0
MEMORY = 2 * 2**30
# Control characters, and those that reorder the text around them; lines may end.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CASES = [*grids(), *logs(), *names(), *results(), *runs_and_indices()]
assert len({case.name for case in CASES}) == len(CASES) > 300


@pytest.fixture(scope="module")
def small_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("hostile") / "runs"
    shape = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=6)
    for seed in (0, 1):
        write_run(runs, "demo", f"ppo-s{seed}", shape=shape, seed=seed)
    sync(runs)
    return runs


def words_of(case: Case, folder: Path, grid: Path) -> list[str]:
    """Fill the folder, return the words of the command."""
    if case.grid:
        shutil.copytree(grid, folder / "runs")
    words = case.make(folder)
    return words if "--runs" in words else [*words, "--runs", str(folder / "runs")]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    found = [(path, path.lstat()) for path in folder.rglob("*")]
    return {str(path): (state.st_size, 0 if path.is_dir() else state.st_mtime_ns) for path, state in found}


@pytest.mark.parametrize("case", [case for case in CASES if not case.heavy], ids=attrgetter("name"))
def test_bad_input_ends_in_one_message_and_changes_nothing(case, small_grid, tmp_path, monkeypatch):
    folder = tmp_path / "outer" / "inner"  # so that "../.." is no folder of other tests
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    words = words_of(case, folder, small_grid)
    before = contents(tmp_path)
    since = time.monotonic()
    result = sorl(*words)
    assert time.monotonic() - since < SECONDS
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in case.codes, result.output
    assert not OBEYED.search(result.output), ascii(result.output)
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.startswith(("sorl: ", "Usage: ", "corrupt segment set aside", "'"))
        assert len(result.stderr) < 6000
        if not case.grid:  # with one, the index may have been brought up to date
            assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for i, c in enumerate(CASES) if c.heavy or i % 12 == 0], ids=attrgetter("name")
)
def test_a_process_ends_in_ten_seconds_and_two_gibibytes(case, small_grid, tmp_path):
    words = words_of(case, tmp_path, small_grid)
    if any("\0" in word for word in words):
        pytest.skip("no process can be given a NUL")
    with (tmp_path / "said").open("wb+") as out:
        command = [sys.executable, str(ROOT / "cli.py"), *(os.fsencode(word) for word in words)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        since = time.monotonic()
        while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.monotonic() - since > 3 * SECONDS:
                process.kill()
                process.wait()
                pytest.fail("it hangs")
            time.sleep(0.02)
    _, status, used = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    text = (tmp_path / "said").read_text(encoding="utf-8", errors="surrogateescape")
    assert "Traceback" not in text, text
    assert process.returncode in case.codes, text
    assert not OBEYED.search(text), ascii(text)
    assert used.ru_maxrss * 1024 < MEMORY
    assert used.ru_utime + used.ru_stime < SECONDS  # of its own: others share the machine


def test_every_verb_has_hostile_cases() -> None:
    verbs = {case.name.split(":")[0].split()[0] for case in CASES}
    assert {command.name for command in typer.main.get_command(app).commands.values()} <= verbs


def test_json_has_a_name_with_its_escapes_and_means_it(tmp_path):
    (tmp_path / "grid.toml").write_text(QUESTION + '[[arms]]\nname = "a\\u001b\\u202e\\u0085"\n')
    words = ("plan", tmp_path / "grid.toml")
    assert r"a\u001b\u202e\u0085" in done(*words, "--format", "json", runs=tmp_path).stdout
    assert told(*words, runs=tmp_path)["cells"][0]["arm"] == "a\x1b\u202e\x85"


def test_no_verb_prints_past_the_one_function_that_shows_control_characters():
    past = re.compile(r"typer\.echo\(|(?<![\w.])print\(")
    found = [
        p.name
        for p in (ROOT / "workbench" / "cli").glob("*.py")
        if past.search(p.read_text(encoding="utf-8"))
    ]
    assert found == ["tables.py"]
