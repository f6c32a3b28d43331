"""What rldoctor says of a folder of scalar logs: `python bench/rldoctor_scalars.py FOLDER [SCENARIO_SEED]`.

Needs the packages of constraints-rldoctor.txt in an environment of their own (`make bench-rldoctor` makes
one); `sorl bench scalars` and `sorl bench logs` start it there. With a seed it first writes the scenarios of
rldoctor's own simulator into the folder, with their truth in scenarios.json. Then it reads every log with the
configuration next to it, and writes answers.json: of each log the detectors that warn, the most severe first.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rl_doctor import Severity, diagnose, run_from_records
from rl_doctor.simulate import EXPECTED_DETECTIONS, simulate

LENGTHS = (200, 400, 1000, 2000)  # steps of the scenarios


def scenarios(folder: Path, seed: int) -> None:
    """Write every scenario in every length, each with a seed of its own."""
    truth: list[dict[str, Any]] = []
    for scenario in EXPECTED_DETECTIONS:
        for steps in LENGTHS:
            seed += 1
            records, config = simulate(scenario, n_steps=steps, seed=seed)
            name = f"rldoctor-{scenario}-{steps}"
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
            (folder / f"{name}.yaml").write_text(json.dumps(config))
            truth.append({"log": name, "scenario": scenario, "seed": seed, "steps": steps})
    (folder / "scenarios.json").write_text(json.dumps(truth))


def named(path: Path) -> list[str]:
    """The detectors that warn of a log, the most severe first."""
    settings = path.with_suffix(".yaml")  # JSON, which is YAML as well
    config = json.loads(settings.read_text()) if settings.exists() else None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    flat = [{**row.get("data", {}), **{k: v for k, v in row.items() if k != "data"}} for row in rows]
    found = [
        f for f in diagnose(run_from_records(flat, config=config)).findings if f.severity >= Severity.WARNING
    ]
    return [f.detector for f in sorted(found, key=lambda f: -f.severity)]


def main(folder: Path, seed: int | None) -> None:
    """Write the scenarios if there is a seed, and the answers to every log."""
    if seed is not None:
        scenarios(folder, seed)
    answers = {path.stem: named(path) for path in sorted(folder.glob("*.jsonl"))}
    (folder / "answers.json").write_text(json.dumps({"version": version("rldoctor"), "answers": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
