"""`python -m studies.mismatch --seed 2`: make, import and diagnose the dumps of a seed, print the counts.

`--from FILE` counts stored answers again; `--folder` keeps dumps, runs and the trained policies, and a second
call goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
import shutil
from functools import cache
from pathlib import Path

from studies.mismatch import count, courses, dumps, plan
from studies.mismatch.count import Case

MOST_ATTEMPTS = 24


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/mismatch"))
    parser.add_argument("--output", type=Path, help="a Parquet file for the answers")
    parser.add_argument("--from", dest="stored", type=Path, help="answers to count again")
    given = parser.parse_args()
    cases = count.read(given.stored) if given.stored else run(given.seed, given.folder)
    if given.output:
        count.write(cases, given.output)
    print(count.table(cases))
    print(count.summary(cases))


def run(seed: int, folder: Path) -> list[Case]:
    """Make, import and diagnose the dumps of a seed."""
    course = cache(lambda number, family: courses.train(number, family, folder / "courses"))
    runs = folder / f"runs-{seed}"
    cases = []
    for number, kind in enumerate((*plan.WITH_FAULT, *plan.CLEAN)):
        case = _case(seed, number, kind, course, folder)
        if not (runs / count.EXPERIMENT / case.name).exists():
            count.record(folder / f"dumps-{seed}" / case.name, case.name, runs)
        cases.append(case)
        print(f"{case.name}: {case.gap:.3g} nats a token", flush=True)
    return list(count.diagnosed(cases, runs))


def _case(seed: int, number: int, kind: str, course: plan.CourseOf, folder: Path) -> Case:
    """Write a dump, unless it is there, and say what it is."""
    for attempt in range(MOST_ATTEMPTS):
        item = plan.item(seed, number, kind, course, attempt)
        target = folder / f"dumps-{seed}" / item.name
        told = target / "gap"
        if not told.is_file():
            shutil.rmtree(target, ignore_errors=True)
            told.write_text(repr(dumps.write(item.scene, target, item.layout)))
        gap = float(told.read_text())
        if plan.fits(item, gap):
            return _of_item(seed, item, gap)
        shutil.rmtree(target)
    raise RuntimeError(f"no dump of kind {kind} in {MOST_ATTEMPTS} attempts")


def _of_item(seed: int, item: plan.Item, gap: float) -> Case:
    scene = item.scene
    return Case(
        item.name,
        seed,
        item.kind,
        item.variant,
        item.strength,
        item.layout,
        scene.steps,
        scene.pool < plan.ONCE,
        scene.onset,
        scene.course.settings.policy.family == courses.MIXTURE,
        gap,
    )


if __name__ == "__main__":
    main()
