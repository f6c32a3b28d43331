"""What stands out in a run, most telling first, each with the way to its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.app import episodes
from workbench.app.links import anchor
from workbench.app.safe import html_text
from workbench.app.wording import number
from workbench.diagnosis.diagnose import diagnose, fallen, none_found
from workbench.diagnosis.log import of_run

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.data import Store
    from workbench.app.diagnostics import Diagnostics

LONG = 2_000  # steps, up to which a diagnosis takes well under a second


@dataclass(frozen=True)
class Finding:
    """A sentence, how grave it is (info, warning or critical), and links: words and address."""

    severity: str
    text: str
    links: Sequence[tuple[str, str]] = field(default=())


def findings(store: Store, known: Diagnostics, run: dict[str, Any], experiment: str) -> Iterator[Finding]:
    """Diagnosed causes, the first alarms, the first number that is none, the trajectory behind the sharpest spike."""
    yield from _diagnosed(store, known, run, experiment)
    found = store.query("leads", runs=[run["run_id"]]).dropna(subset=["step"])
    yield first_alarms(found, run["collapse_step"])
    broken = [e for e in store.records("happened", run=run["run_id"]) if e["kind"] == "non_finite"]
    if broken and broken[0]["step"] is not None:
        step = broken[0]["step"]
        yield Finding("critical", f"NaN or Inf from step {step:,} on.", [_episode(known, run, experiment, step)])
    if signals := episodes.signals(known):
        yield from _spike(store, known, run, experiment, signals[0])


def _diagnosed(store: Store, known: Diagnostics, run: dict[str, Any], experiment: str) -> Iterator[Finding]:
    """The causes that the log speaks for; of a very long run only `sorl diagnose` tells them."""
    if (run.get("steps") or 0) > LONG:
        yield Finding("info", f"Causes are looked for by: sorl diagnose {run['run_id']}")
        return
    said = store.computed(("diagnosis", run["run_id"]), lambda reader: diagnose(of_run(reader, run["run_id"])))
    if fell := fallen(said):
        yield Finding("critical", fell)
    for found in said.findings:
        clue = found.clue
        yield Finding(
            found.cause.severity,
            f"{found.cause.title} ({round(100 * clue.confidence)} %): {clue.says}. {found.cause.change}",
            [_episode(known, run, experiment, clue.step, clue.trajectory)],
        )
    if not said.findings and (none := none_found(said)) != "Nothing found.":
        yield Finding("warning", none)


def first_alarms(found: pd.DataFrame, onset: int | None) -> Finding:
    """Which alarms went off first; `found` has diagnostic and step of the first alarm of each kind."""
    if found.empty:
        return Finding("info", "No alarm went off.")
    first = int(found["step"].min())
    names = " and ".join(found.loc[found["step"] == first, "diagnostic"])
    count = int((found["step"] > first).sum())
    later = f"; {count} more kind{'' if count == 1 else 's'} of alarm later" if count else ""
    if onset is None:
        return Finding("warning", f"First alarm: {names} at step {first:,}{later}.")
    ahead = onset - first
    when = f"{ahead:,} steps before the onset" if ahead > 0 else "not before the onset"
    return Finding("warning", f"First alarm: {names} at step {first:,}, {when}{later}.")


def _spike(store: Store, known: Diagnostics, run: dict[str, Any], experiment: str, signal: str) -> Iterator[Finding]:
    """The trajectory with the largest share of the gradient at the spike of a signal."""
    seen = episodes.watched(store, known, run, signal)
    points = seen.signal.points
    value = points.loc[points["step"] == seen.spike, "value"]
    rows = episodes.ranked(store.records("ranking", run=run["run_id"], step=seen.spike), "gradient_share")
    if value.empty or not rows or rows[0]["gradient_share"] is None:
        return
    until = " up to the onset" if run["collapse_step"] is not None else ""
    worst = rows[0]
    yield Finding(
        "info",
        f"{signal} has its peak{until} at step {seen.spike:,}: {number(float(value.iloc[0]))}. Of {len(rows)} "
        f"trajectories there, {worst['trajectory']} had the largest share of the gradient: "
        f"{number(worst['gradient_share'])}.",
        [_episode(known, run, experiment, seen.spike, worst["trajectory"])],
    )


def _episode(
    known: Diagnostics, run: dict[str, Any], experiment: str, step: int, trajectory: int | None = None
) -> tuple[str, str]:
    place = {} if trajectory is None else {"trajectory": str(trajectory)}
    return "episode", episodes.address(known, experiment=experiment, run=run["run_id"], step=str(step), **place)


def findings_html(found: Sequence[Finding]) -> str:
    """The findings as HTML, a paragraph each."""
    return "".join(
        f'<p class="sorl-finding sorl-{html_text(one.severity)}">{html_text(one.text)} '
        f"{' '.join(anchor(words, where) for words, where in one.links)}</p>"
        for one in found
    )
