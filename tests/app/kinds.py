"""A run of every kind, from healthy to diverged, imported or one step long: what sentences must
be true of.
"""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sorl.collapse.rule import judge
from sorl.spec import RunSettings
from sorl.store.sync import sync
from tests.store.fixture import write_dictionary, write_experiment, write_segment, write_status


def falling(after: int, over: int, to: float = 0.02) -> list[float]:
    return [min(0.8, max(to, 0.8 - (0.8 - to) * (step - after) / over)) for step in range(36)]


RISING = [0.4 + 0.01 * step for step in range(36)]
KINDS = {  # success of runs of each kind, a value a step
    "healthy": RISING,
    "fast": falling(14, 1),
    "slow": falling(10, 12),
    "falling": falling(34, 1),
    "recovered": [0.8 if step <= 8 or step > 16 else 0.05 for step in range(36)],
    "climbing": [0.8 if step <= 14 else 0.7 if step > 32 else 0.05 for step in range(36)],
    "diverged": [*falling(14, 1)[:20], math.nan],
    "never": [0.05] * 36,
    "imported": falling(3, 1)[:8],
    "nan": RISING,
    "one": [0.5],
    "mild": falling(20, 2, 0.5),
}
MILD = "success fell from 0.800 (steps 0 to 20) to 0.500; the fall began after step 20"
EVENTS = {
    "healthy": [(5, "alarm", "warning", "ess_frac_min", "")],
    "nan": [(7, "non_finite", "warning", "kl_k3", "")],
    "fast": [(11, "alarm", "warning", "ess_frac_min", ""), (16, "alarm", "warning", "kl_k3", "")],
    "falling": [(34, "alarm", "warning", "entropy", "")],
    "diverged": [(20, "non_finite", "critical", "success", "")],
    "mild": [(24, "mild", "warning", "", MILD)],
}


KEPT = {name: 3 if name == "slow" else 2 for name in KINDS}  # the trajectory whose tokens a run keeps
_WORDS = ("who", "?", "<search>", "zelda", "teacher", "</search>")
_WRITTEN = range(2, 6)  # two tokens of turn 1, two of turn 2


def write_kinds(folder: Path) -> None:
    """An experiment with a run of every kind: its updates leap at the step after which it falls.

    Trajectory 2 of 4 has most of each step's gradient, in epoch 0, in the turn of one token that is drawn.
    """
    draw = random.Random(0)
    write_experiment(folder, "kinds")
    for name, curve in KINDS.items():
        run = folder / "kinds" / name
        steps = range(len(curve))
        success = [value + draw.uniform(-0.01, 0.01) for value in curve]
        verdict: dict[str, Any] = judge([v if v == v else None for v in success], episodes=300).columns()
        verdict |= {"outcome": "diverged"} if name == "diverged" else {}
        leap = [60.0 if step == verdict["onset_low"] else 1.5 + 0.1 * (step % 3) for step in steps]
        write_dictionary(run)
        measured = {
            "step": steps,
            "ratio_max": leap,
            "grad_norm_max": [x / 3 for x in leap],
            "staleness": 8.0,
        }
        write_segment(run, "step", measured | {"success": success, "reward": success})
        if name != "imported":
            updates = {"step": steps, "ratio_max": leap, "grad_norm": measured["grad_norm_max"], "epoch": 1}
            write_segment(run, "minibatch", updates)
            _write_rows(run, "trajectory", _trajectories(steps))
            heavy = [draw.choice(_WRITTEN) for _ in steps]
            _write_rows(run, "turn", _turns(heavy))
            ratios = [0.001 if step == verdict["onset_low"] else 1 - 0.001 * (step % 7) for step in steps]
            _write_rows(
                run,
                "turn_step",
                [
                    {"step": step, "turn_index": turn, "n_turns": 64, "ratio_geo": ratio}
                    for step, ratio in enumerate(ratios)
                    for turn in (1, 2)
                ],
            )
            _write_rows(run, "token", [_tokens(step, KEPT[name], at) for step, at in enumerate(heavy)])
            ends = {"step": [0, len(steps)], "success": [0.4, success[-1]], "data": "facts"}
            write_segment(run, "evaluation", ends)
        if events := EVENTS.get(name):
            columns = ("step", "kind", "severity", "diagnostic", "message")
            _write_rows(run, "event", [dict(zip(columns, event, strict=True)) for event in events])
        config = RunSettings(learn={"staleness": 8}).model_dump_json()
        write_status(run, arm=name, steps=len(steps), config=config, **verdict)
    sync(folder)


def _write_rows(run: Path, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    write_segment(run, table, {key: [row[key] for row in rows] for key in rows[0]})


def _trajectories(steps: range) -> list[dict[str, Any]]:
    share = [0.1, 0.1, 0.7, 0.1]
    return [
        {"step": step, "trajectory": which, "gradient_share": share[which]}
        for step in steps
        for which in range(4)
    ]


def _turns(heavy: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "step": row["step"],
            "trajectory": row["trajectory"],
            "turn_index": turn,
            "epoch": epoch,
            "update": epoch,
            "gradient_share": row["gradient_share"] * (0.8 if turn == at // 2 else 0.2) / (1 + epoch),
        }
        for row in _trajectories(range(len(heavy)))
        for at in [heavy[row["step"]]]
        for epoch in (0, 1)
        for turn in (1, 2)
    ]


def _tokens(step: int, trajectory: int, heavy: int) -> dict[str, Any]:
    written = [place in _WRITTEN for place in range(len(_WORDS))]

    def weights(top: int, size: float) -> list[float | None]:
        return [
            None if place not in _WRITTEN else size if place == top else 0.1 for place in range(len(_WORDS))
        ]

    return {
        "step": step,
        "trajectory": trajectory,
        "token": list(_WORDS),
        "token_id": list(range(len(_WORDS))),
        "trained": written,
        "turn_index": [place // 2 if place in _WRITTEN else 0 for place in range(len(_WORDS))],
        "gradient_weight": weights(2 + (heavy - 1) % 4, 3.0),
        "worst_gradient_weight": weights(heavy, -5.0),
        "log_ratio": weights(heavy, 0.2),
        "worst_log_ratio": weights(heavy, 4.0),
        "worst_epoch": 0,
        "clipped": [False] * len(_WORDS),
        "worst_clipped": [False] * len(_WORDS),
    }
