"""What each reason looks like, one small plot a reason: `python -m studies.mismatch.figure FILE.png`.

One dump a kind, of one trained policy (of a mixture for the routing of experts), the fault from the start
but where its growth is the signature. Needs chromium.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from studies.mismatch import courses
from studies.mismatch.courses import Course
from studies.mismatch.dumps import Told, rows_of
from studies.mismatch.samplers import GROUPS, Scene

SEED = 100
STEPS = 20
COLUMNS = 3
BLUE = "#2a6fbb"
ORANGE = "#c8641b"
SMALLEST = 1e-8  # nats, so that a logarithm has something to show


@dataclass(frozen=True)
class Panel:
    """One plot: its words, its dump, and how the dump is drawn."""

    title: str
    kind: str
    variant: str
    strength: float
    draw: Callable[[list[list[Told]]], list[go.Scatter]]
    x: str
    y: str
    is_log: bool = False  # the vertical axis
    onset: int = 0


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of rollouts, (M,) each."""

    trainer: np.ndarray  # log-probs
    gap: np.ndarray  # trainer less sampler, nats

    @classmethod
    def of(cls, rows: list[Told]) -> Tokens:
        """Those that the policy wrote."""
        written = np.concatenate([row.written for row in rows]).astype(bool)
        trainer = np.concatenate([row.trainer for row in rows])[written]
        sampler = np.concatenate([row.sampler for row in rows])[written]
        return cls(trainer, trainer - sampler)


def by_probability(steps: list[list[Told]]) -> list[go.Scatter]:
    """The gap of each token against its log-prob."""
    tokens = Tokens.of(list(chain.from_iterable(steps)))
    return [_dots(tokens.trainer, tokens.gap)]


def by_age(steps: list[list[Told]]) -> list[go.Scatter]:
    """The mean gap of the rollouts of each age."""
    gaps: dict[int, list[float]] = {}
    for step, rows in enumerate(steps):
        for row in rows:
            gaps.setdefault(step - row.version, []).append(_mean_gap([row]))
    ages = sorted(gaps)
    return [_line(ages, [float(np.mean(gaps[age])) for age in ages], "gap")]


def by_step(steps: list[list[Told]]) -> list[go.Scatter]:
    """The mean gap of each step, and how far the sampler moved where a context comes again."""
    numbers = list(range(len(steps)))
    gaps = [_mean_gap(rows) for rows in steps]
    return [_line(numbers, gaps, "gap"), _line(numbers, sampler_moves(steps), "sampler moves", ORANGE)]


def by_place(steps: list[list[Told]]) -> list[go.Scatter]:
    """The gap along six rollouts of the last step."""
    lines = []
    for row in steps[-1][:6]:
        gap = np.abs(Tokens.of([row]).gap) + SMALLEST
        lines.append(_line(list(range(len(gap))), gap.tolist(), "rollout"))
    return lines


def sampler_moves(steps: list[list[Told]]) -> list[float | None]:
    """How far the sampler's log-probs moved of first tokens whose prompt an earlier step had as well."""
    before: dict[tuple[int, ...], float] = {}
    moves: list[float | None] = []
    for rows in steps:
        now = {tuple(row.tokens[: row.prompt_length + 1]): row.sampler[row.prompt_length] for row in rows}
        changes = [abs(now[context] - before[context]) for context in now if context in before]
        moves.append(float(np.mean(changes)) if changes else None)
        before |= now
    return moves


PANELS = (
    Panel("no fault", "clean", "", 0, by_probability, "log-prob by the trainer", "gap, nats"),
    Panel(
        "temperature 0.85", "temperature", "", 0.85, by_probability, "log-prob by the trainer", "gap, nats"
    ),
    Panel("top-p 0.9", "top_p", "", 0.9, by_probability, "log-prob by the trainer", "gap, nats"),
    Panel("bfloat16", "low_precision", "bfloat16", 7, by_probability, "log-prob by the trainer", "gap, nats"),
    Panel("other experts", "routing", "", 0.3, by_probability, "log-prob by the trainer", "gap, nats"),
    Panel("other tokens", "other_tokens", "word", 1.0, by_place, "token of the rollout", "|gap|, nats", True),
    Panel("version lag", "version_lag", "mixed", 12, by_age, "age of the data, steps", "mean |gap|, nats"),
    Panel("a sync that never lands", "sync_never_lands", "", 1, by_step, "step", "nats", onset=6),
    Panel("a part is not synced", "part", "stale lm_head", 1, by_step, "step", "nats", onset=6),
)


def _mean_gap(rows: list[Told]) -> float:
    return float(np.abs(Tokens.of(rows).gap).mean())


def _dots(x: np.ndarray, y: np.ndarray) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="markers", marker={"size": 3, "color": BLUE, "opacity": 0.35})


def _line(x: list[int], y: list[float | None] | list[float], name: str, colour: str = BLUE) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="lines+markers", name=name, line={"color": colour}, marker={"size": 4})


def scene_of(panel: Panel, course: Course) -> Scene:
    """The dump of a panel; its questions come again after three steps."""
    return Scene(
        course=course,
        steps=STEPS,
        pool=3 * GROUPS,
        kind=panel.kind,
        variant=panel.variant,
        strength=panel.strength,
        onset=panel.onset,
        trainer_bits=None,
        draw=np.random.default_rng(SEED),
    )


def figure(cache: Path) -> go.Figure:
    """All panels."""
    titles = [panel.title for panel in PANELS]
    drawn = make_subplots(len(PANELS) // COLUMNS, COLUMNS, subplot_titles=titles, vertical_spacing=0.11)
    for number, panel in enumerate(PANELS):
        family = courses.MIXTURE if panel.kind == "routing" else courses.DENSE
        scene = scene_of(panel, courses.train(SEED, family, cache))
        row = number // COLUMNS + 1
        column = number % COLUMNS + 1
        for trace in panel.draw([rows_of(scene, step) for step in range(STEPS)]):
            drawn.add_trace(trace, row=row, col=column)
        drawn.update_xaxes(title={"text": panel.x, "standoff": 4}, row=row, col=column)
        kind = "log" if panel.is_log else "linear"
        drawn.update_yaxes(
            title={"text": panel.y, "standoff": 2}, type=kind, exponentformat="power", row=row, col=column
        )
        print(panel.title, flush=True)
    drawn.update_layout(
        width=1100, height=900, showlegend=False, template="plotly_white", margin={"l": 60, "r": 20, "t": 40}
    )
    return drawn


def save(drawn: go.Figure, file: Path) -> None:
    """Take a picture of the figure in chromium."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as play:
        page_file = Path(folder) / "figure.html"
        drawn.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1120, "height": 910})
        page.goto(page_file.as_uri(), timeout=120_000)
        page.wait_for_selector(".main-svg")
        page.screenshot(path=file)
        browser.close()


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/mismatch"))
    given = parser.parse_args()
    (given.folder / "courses").mkdir(parents=True, exist_ok=True)
    save(figure(given.folder / "courses"), given.file)


if __name__ == "__main__":
    main()
