"""Run folders as a trainer leaves them, written without a trainer (and without torch): what tests of other
rooms read.

`write_grid(runs)` makes a small experiment: four algorithms with two seeds, of which `ppo` collapses, `grpo`
learns nothing, one run failed and one was killed. `write_run` makes one run of any size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sorl.collapse.rule import judge
from sorl.measures import CATALOGUE
from sorl.measures.declare import dictionary as declared_rows
from sorl.recording.segments import schema_of
from sorl.spec import Diagnostic, LearnSettings, RunSettings, Unit

START = datetime(2026, 11, 1, 12)


# Diagnostics whose usual size is neither near 0 nor near 1.
QUIET = {
    "ess_frac": (0.8, 0.95),
    "ess_frac_min": (0.6, 0.8),
    "valid_action_frac": (0.93, 0.99),
    "entropy": (0.9, 1.1),
    "explained_variance": (0.3, 0.5),
    "group_reward_std": (0.3, 0.4),
    "advantage_std": (0.9, 1.1),
}


@dataclass(frozen=True)
class Shape:
    """How much a run records; the defaults make a run of about 2,000 turn rows."""

    steps: int = 30
    trajectories: int = 8
    turns: int = 4
    epochs: int = 2
    minibatches: int = 2
    tokens: int = 1  # trajectories a step with every token
    texts: bool = True  # three of four trajectories with their text
    steps_per_segment: int = 10


# So many episodes that the curves below, whose noise is .01, are judged by their shape.
CONFIG = RunSettings(learn=LearnSettings(episodes=1000)).model_dump_json()


def columns_of(name: str) -> dict[str, pa.DataType]:
    """Every column of a table, the measured ones included."""
    return {field.name: field.type for field in schema_of(name)}


def write_segment(folder: Path, name: str, rows: Mapping[str, Any], file: str | None = None) -> Path:
    """One segment of table `name` under a run's (or an experiment's) folder: temporary name, then renamed.

    A value that is no list stands in every row; run_id, written_at and diagnostic need not be given.
    """
    target = folder / "segments" / name
    known = columns_of(name)
    target.mkdir(parents=True, exist_ok=True)
    file = file or f"{len(list(target.iterdir())):06d}.parquet"
    same = {"run_id": folder.name, "written_at": START, "diagnostic": ""}
    columns = {c: v for c, v in same.items() if c in known} | dict(rows)
    size = max((len(v) for v in columns.values() if isinstance(v, list | range | np.ndarray)), default=1)
    lists = {c: v if isinstance(v, list | range | np.ndarray) else [v] * size for c, v in columns.items()}
    data = pa.table({c: pa.array(v, known.get(c)) for c, v in lists.items()})
    unfinished = target / f".{file}.tmp"
    pq.write_table(data, unfinished)
    return unfinished.rename(target / file)


def write_dictionary(folder: Path, dictionary: Sequence[Diagnostic] = CATALOGUE) -> None:
    """The segment of table `diagnostic` that travels with each run."""
    write_segment(folder, "diagnostic", declared_rows(dictionary))


def run_row(folder: Path, **changes: Any) -> dict[str, Any]:
    """A row of table `run` for the run in `folder`, finished and healthy unless `changes` say otherwise."""
    row = {
        "run_id": folder.name,
        "experiment": folder.parent.name,
        "algorithm": "ppo",
        "arm": "ppo",
        "seed": 0,
        "config_hash": "c0ffee",
        "config": CONFIG,
        "status": "finished",
        "reason": None,
        "outcome": "healthy",
        "collapse_step": None,
        "detection_step": None,
        "peak_success": 0.8,
        "final_success": 0.78,
        "steps": 30,
        "started_at": START,
        "ended_at": START + timedelta(minutes=1),
        "seconds": 60.0,
        "versions": json.dumps({"sorl": "0.1.0", "torch": "2.13.0"}),
    }
    return row | changes


def write_status(folder: Path, **changes: Any) -> Path:
    """A segment of table `run` with one row."""
    return write_segment(folder, "run", run_row(folder, **changes))


def success_curve(steps: int, collapse: int | None, learns: bool, rng: np.random.Generator) -> np.ndarray:
    """Success per step, (steps,): rises to 0.8 (or stays at 0.05) and falls within five steps
    of `collapse`.
    """
    t = np.arange(steps)
    level = 0.8 * (1 - np.exp(-t / 5)) if learns else np.full(steps, 0.05)
    if collapse is not None:
        level = level * np.clip(1 - (t - collapse) / 5, 0.02, 1)
    return np.clip(level + rng.normal(0, 0.01, steps), 0, 1)


def write_run(
    runs: Path,
    experiment: str,
    run_id: str,
    *,
    shape: Shape = Shape(),
    algorithm: str = "ppo",
    arm: str | None = None,
    seed: int = 0,
    collapse: int | None = None,
    learns: bool = True,
    status: str = "finished",
    reason: str | None = None,
    log: str = "",
) -> Path:
    """A run's folder with every table; with `collapse` the ratio of turn 3 runs away five steps before that
    step.
    """
    folder = runs / experiment / run_id
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'algorithm = "{algorithm}"\nseed = {seed}\n')
    (folder / "console.log").write_text(log)
    rng = np.random.default_rng([seed, len(algorithm)])
    success = success_curve(shape.steps, collapse, learns, rng)
    judged = judge(success.tolist(), episodes=1000)
    identity = {"algorithm": algorithm, "arm": arm or algorithm, "seed": seed}
    write_status(folder, **identity, status="running", outcome=None, ended_at=None)
    write_dictionary(folder)
    for first in range(0, shape.steps, shape.steps_per_segment):
        steps = np.arange(first, min(first + shape.steps_per_segment, shape.steps))
        for name, rows in step_rows(run_id, steps, success, shape, collapse, rng, seed).items():
            write_segment(folder, name, rows)
    if collapse is not None:
        events = [
            (collapse - 3, "alarm", "warning", "ess_frac_min", 0.2, 0.3, "ess_frac_min fell below 0.3"),
            (collapse - 1, "alarm", "warning", "grad_norm_max", 40.0, 20.0, "grad_norm_max is above 20"),
            (
                judged.detection,
                "collapse",
                "critical",
                "success",
                float(success[-1]),
                0.5,
                "success fell by half",
            ),
        ]
        names = ("step", "kind", "severity", "diagnostic", "value", "threshold", "message")
        write_segment(folder, "event", dict(zip(names, map(list, zip(*events, strict=True)), strict=True)))
    verdict = judged.columns() | ({} if status == "finished" else {"outcome": None})
    verdict |= {"ended_at": None} if status == "running" else {}
    started = START + timedelta(seconds=seed)
    write_status(
        folder, **identity, status=status, reason=reason, steps=shape.steps, started_at=started, **verdict
    )
    return folder


def step_rows(
    run_id: str,
    steps: np.ndarray,
    success: np.ndarray,
    shape: Shape,
    collapse: int | None,
    rng: np.random.Generator,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Rows of every measured table for `steps`."""
    B = shape.trajectories
    K = shape.turns
    E = shape.epochs
    U = shape.minibatches
    danger = np.clip((steps - (collapse - 6)) / 3, 0, 3) if collapse is not None else np.zeros(len(steps))
    spread = dict(zip(steps.tolist(), danger.tolist(), strict=True))

    def measured(name: str, index: dict[str, np.ndarray]) -> dict[str, Any]:
        size = len(index["step"])
        trouble = np.array([spread[s] for s in index["step"].tolist()])
        rows: dict[str, Any] = {d.name: values(d, size, trouble, rng) for d in CATALOGUE if d.table == name}
        return rows | {"run_id": np.full(size, run_id)} | index

    def index(**sizes: int) -> dict[str, np.ndarray]:
        grid = np.meshgrid(
            steps, *(np.arange(n) + (k == "turn_index") for k, n in sizes.items()), indexing="ij"
        )
        return {k: g.ravel() for k, g in zip(("step", *sizes), grid, strict=True)}

    step = measured("step", index())
    step |= {
        "success": success[steps],
        "reward": success[steps],
        "token_mismatches": np.zeros(len(steps), dtype=int),
        "questions_hash": 1000 * seed + steps,  # what the guard sees: the seed reached the run
        "batch_hash": rng.integers(2**48, size=len(steps)),
        "written_at": [START + timedelta(seconds=int(s)) for s in steps],
    }
    updates = index(epoch=E, update=U)
    updates["update"] = updates["epoch"] * U + updates["update"]
    minibatch = measured("minibatch", updates | {"rollout_step": updates["step"]})
    bias = minibatch["clip_bias_norm"]
    minibatch["clip_bias_norm"] = [
        v if u % 2 == 0 else None for v, u in zip(bias, updates["update"], strict=True)
    ]
    who = index(trajectory=B)
    trajectory = measured(
        "trajectory", who | {"prompt_group": who["trajectory"] // 2, "rollout_step": who["step"]}
    )
    trajectory |= {
        "question": [f"which [{i}] of e{i}?" for i in who["trajectory"]],
        "gold": ["e1"] * len(who["step"]),
        "answer": [None if i % 3 == 0 else "e1" for i in who["trajectory"]],
        "ended": ["answer"] * len(who["step"]),
        "success": rng.random(len(who["step"])) < success[who["step"]],
    }
    which = index(epoch=E, trajectory=B, turn_index=K)
    turn = measured("turn", which | {"update": which["epoch"] * U + which["trajectory"] * U // B})
    third = which["turn_index"] == 3
    turn["ratio_geo"] = np.where(third, turn["ratio_geo"] * 3, turn["ratio_geo"])
    for share in ("ratio_mass_frac", "gradient_share"):
        turn[share] = _shares(np.where(third, turn[share] * 5, turn[share]), which["step"], which["epoch"])
    sampled = index(trajectory=shape.tokens)
    lists = {
        c: [_token_list(c, t, 3 * K, rng) for _ in sampled["step"]]
        for c, t in columns_of("token").items()
        if c not in ("run_id", "step", "trajectory")
    }
    texts = transcripts(run_id, who["step"], who["trajectory"], K)
    at = steps[steps % 10 == 0]
    evaluation = {
        "run_id": run_id,
        "step": at,
        "data": "facts",
        "episodes": 64,
        "turns": 3.0,
        "success": success[at],
        "success_low": success[at] * 0.8,
        "success_high": np.minimum(1, success[at] * 1.1),
    }
    weights = {
        "network": ["policy"] * len(steps),
        "layer": ["layer 0"] * len(steps),
        "weight_norm": np.full(len(steps), 3.0),
        "fingerprint_start": rng.normal(0, 1, len(steps)),
    }
    checksums = rng.integers(2**48, size=len(steps))
    batch = {"sampled_checksum": checksums, "trained_checksum": checksums}
    found = {
        "witness": {"run_id": run_id, "step": steps, **weights},
        "witness_batch": {"run_id": run_id, "step": steps, **batch},
        "step": step,
        "minibatch": minibatch,
        "trajectory": trajectory,
        "turn": turn,
        "turn_step": measured("turn_step", index(turn_index=K)),
        "token": {"run_id": [run_id] * len(sampled["step"]), **sampled, **lists},
        **({"transcript": texts} if shape.texts else {}),
        "evaluation": evaluation,
    }
    return {name: rows for name, rows in found.items() if len(rows["step"])}


def transcripts(run_id: str, steps: np.ndarray, trajectories: np.ndarray, turns: int) -> dict[str, Any]:
    """Rows of table `transcript` for all trajectories but every fourth, whose text was not kept."""
    rows = [
        (step, which)
        for step, which in zip(steps.tolist(), trajectories.tolist(), strict=True)
        if which % 4 != 3
    ]
    parts = [transcript_parts(step, which, turns) for step, which in rows]
    return {
        "run_id": [run_id] * len(rows),
        "step": [step for step, _ in rows],
        "trajectory": [which for _, which in rows],
        "text": ["".join(one) for one in parts],
        "part_start": [np.cumsum([0, *map(len, one)])[:-1].tolist() for one in parts],
        "part_turn": [list(map(_turn_of_part, range(len(one)))) for one in parts],
    }


def _turn_of_part(place: int) -> int:
    """Turn that the policy wrote a part in: every second one, from the second on."""
    return (place + 1) // 2 if place % 2 else 0


def transcript_parts(step: int, trajectory: int, turns: int) -> list[str]:
    """The prompt, and what was written and read in each turn; two rollouts share prompt and turn 1."""
    parts = [f"which is the aunt of e{trajectory // 2}?"]
    for turn in range(1, turns + 1):
        query = f"aunt of e{trajectory // 2}" if turn == 1 else f"hop {turn} of e{trajectory} at {step}"
        parts += [
            f" <think> turn {turn} </think> <search> {query} </search>",
            f" <information> fact {turn} </information>",
        ]
    return parts[:-1]


def _token_list(column: str, kind: pa.DataType, length: int, rng: np.random.Generator) -> Any:
    if column == "worst_epoch":
        return 0
    position = range(length)
    if column == "turn_index":
        return [i // 3 + 1 if i % 3 else 0 for i in position]
    if pa.types.is_string(kind.value_type):
        return ["<search>" if i % 3 == 1 else f"e{i}" for i in position]
    if pa.types.is_boolean(kind.value_type):
        return [i % 3 > 0 for i in position]
    return list(position) if pa.types.is_integer(kind.value_type) else rng.normal(-1, 0.3, length).tolist()


def _shares(values: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """`values` divided by their sum within each combination of `groups`."""
    group = np.unique(np.stack(groups), axis=1, return_inverse=True)[1].ravel()
    return values / np.bincount(group, weights=values)[group]


def values(d: Diagnostic, size: int, trouble: np.ndarray, rng: np.random.Generator) -> Any:
    """Plausible numbers of a diagnostic, (size,); `trouble` (size,) widens those that announce a collapse."""
    worse = 1 + 5 * trouble
    if d.name == "non_finite":
        return np.zeros(size, dtype=int)
    made = {
        "VARCHAR": lambda: rng.choice(np.array(["search", "answer", "invalid"]), size),
        "BOOLEAN": lambda: rng.random(size) < 0.5,
        "BIGINT": lambda: rng.integers(4, 20, size),
        Unit.FRACTION: lambda: np.clip(rng.uniform(0.01, 0.05, size) * worse, 0, 1),
        Unit.RATIO: lambda: np.exp(rng.normal(0, 0.02, size) * worse),
        Unit.NORM: lambda: rng.uniform(1, 3, size) * worse,
        Unit.SECONDS: lambda: rng.uniform(0.1, 0.3, size),
    }
    if d.name in QUIET:
        return rng.uniform(*QUIET[d.name], size)
    return made.get(d.sql_type, made.get(d.unit, lambda: rng.normal(0, 0.02, size) * worse))()


def write_experiment(runs: Path, experiment: str, question: str = "Does the clip stop the collapse?") -> Path:
    """The folder of an experiment with its row."""
    folder = runs / experiment
    folder.mkdir(parents=True, exist_ok=True)
    row = {"experiment": experiment, "question": question, "toml": f'question = "{question}"\n'}
    write_segment(folder, "experiment", row)
    return folder


def write_grid(runs: Path, experiment: str = "demo", shape: Shape = Shape()) -> list[str]:
    """A small experiment of eight runs; returns their ids."""
    write_experiment(runs, experiment)
    log = "loading\n\x1b[31mRuntimeError: [bold]CUDA out of memory[/bold]\x1b[0m\n"
    arms: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("ppo", "aaaa", {"collapse": 15}, {"collapse": 16}),
        ("st-ppo", "aaaa", {}, {}),
        ("grpo", "aaaa", {"learns": False}, {"learns": False}),
        (
            "so-grpo",
            "bbbb",
            {"status": "failed", "reason": "RuntimeError: out", "log": log},
            {"status": "running"},
        ),
    ]
    ids = []
    for algorithm, key, *seeds in arms:
        for seed, more in enumerate(seeds):
            ids.append(f"{algorithm}-s{seed}-{key}000{seed}")
            write_run(runs, experiment, ids[-1], shape=shape, algorithm=algorithm, seed=seed, **more)
    return ids
