"""The scale bars of the app: from the question to the figure, by the very code that the screens run."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import live
from bench.crowd import EXPERIMENT, Size, ensure
from bench.measure import Latency, Peer, Sample, answered
from sorl.analysis.runs import runs as runs_of
from sorl.app import theme
from sorl.app.data import Chosen, Drawing, Window, onsets, panel
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import curves
from sorl.app.figures.maps import ACROSS, Measure, colour_scale, heat
from sorl.app.queries import Diagnostics, Store, dictionary
from sorl.app.screens.turns import CELLS, FIRST, Turns

if TYPE_CHECKING:
    import pandas as pd

REQUESTS = 60  # of each kind: 240 in all, and again
PEERS = "5,20,50,100,200,500,1000"  # runs that trackio and TensorBoard are measured with
PYTHON = Path(".venv-browse/bin/python")
SCRIPT = Path(__file__).with_name("browse_peers.py")
TOOLS = ("trackio", "tensorboard")
MEMORY = 2.0  # GiB
ARMS = 6  # that the screens choose at first


@dataclass(frozen=True)
class Crowd:
    """What every request needs: the database, its runs, and the columns that were recorded."""

    store: Store
    each: pd.DataFrame
    known: Diagnostics
    curves: list[str]
    turns: list[str]

    @classmethod
    def of(cls, runs: Path) -> Crowd:
        """The crowd of a folder."""
        store = Store(runs)
        known = dictionary(store)
        charted = [m for m in known.charted if known.rows[m]["table_name"] != "minibatch"]
        return cls(store, runs_of(store.reader, EXPERIMENT), known, charted, known.names("turn_step", FIRST))

    def fresh(self) -> None:
        """Forget all answers."""
        self.store.forget()

    def some(self, arms: int | None) -> pd.DataFrame:
        """The runs of the first arms; of all without a number."""
        return (
            self.each if arms is None else self.each[self.each["arm"].isin(self.each["arm"].unique()[:arms])]
        )

    @property
    def last(self) -> int:
        """The last step of the longest run."""
        return int(self.each["steps"].max()) - 1

    def styles(self, names: Sequence[str]) -> dict[str, theme.Style]:
        """Colours of the arms."""
        pairs = list(self.each[["arm", "algorithm"]].drop_duplicates().itertuples(index=False, name=None))
        return theme.styles(pairs, theme.LIGHT, drawn=names)


@dataclass(frozen=True)
class Browse:
    """How large the crowd is, where it is kept (None: in a temporary folder), and how often each kind is
    requested.
    """

    size: Size = field(default_factory=Size)
    folder: Path | None = None
    requests: int = REQUESTS
    counts: str = PEERS

    def measure(self, say: Callable[[str], None]) -> tuple[list[Latency], list[Peer]]:
        """The answers of the app, and those of other tools where they are installed."""
        with tempfile.TemporaryDirectory(prefix="sorl-browse-") as place:
            runs = self.folder or Path(place) / "runs"
            ensure(runs, self.size, say)
            say("requests")
            found = answers(runs, self.requests)
            if reason := live.missing():
                say(f"without first paint and memory: {reason}")
            else:
                say("first paint and memory")
                found += app(runs, Path(place))
            if reason := missing():
                say(f"without trackio and TensorBoard: {reason}")
                return found, []
            say("trackio and TensorBoard")
            others: list[Peer] = []
            try:
                others.extend(peers(Path(place), self.size.steps, self.counts, partial(ours, Crowd.of(runs))))
            except RuntimeError as error:  # what was measured before is worth its minutes
                say(str(error))
            return found, others


def ours(crowd: Crowd, runs: int) -> tuple[float, float]:
    """Seconds, by the clock and of CPU time, until success of so many runs can be drawn; the
    median of five.
    """
    first = crowd.each.head(runs)
    chosen = Chosen(first, "step", [0] * len(first), Window.over(0, crowd.last, len(first)))
    times = []
    for _ in range(5):
        crowd.fresh()
        times.append(answered(lambda: chosen.points(crowd.store, "step", "success")))
    return median(t.seconds for t in times), median(t.cpu_seconds for t in times)


def app(runs: Path, place: Path, times: int = 5) -> list[Latency]:
    """Seconds until Overview is drawn in a browser, next to those for one run, and the most memory of the app
    (GiB).
    """
    one = place / "one"
    ensure(one, Size(1, 40, 1), lambda _: None)
    all_runs = Latency("first paint of Overview", 2.0)
    one_run = Latency("the same, one run", 2.0)
    most = Latency("memory of the app", MEMORY, unit="GiB", of="max")
    for number in range(times):
        one_run.samples.append(_painted(one, place)[0])
        seconds, memory = _painted(
            runs, place, ("compare?seeds=single", "turns") if number == times - 1 else ()
        )
        all_runs.samples.append(seconds)
    most.samples.append(memory)
    return [all_runs, one_run, most]


def _painted(runs: Path, place: Path, then: Sequence[str] = ()) -> tuple[Sample, Sample]:
    """Seconds until Overview is drawn by an app that nobody has opened yet, and its memory after screens
    `then`.
    """
    with (
        live.served(runs, place / "app.log") as (process, address),
        live.opened(f"{address}/glossary") as page,
    ):
        page.wait_for_selector(".sorl-note, .sorl-table")  # its modules are loaded by then, as in any app
        began = time.perf_counter()
        for screen in ("overview", *then):
            page.goto(f"{address}/{screen}")
            page.wait_for_selector(".js-plotly-plot .main-svg, .sorl-drawing svg")
            if screen == "overview":
                seconds = time.perf_counter() - began
        words = Path(f"/proc/{process.pid}/status").read_text().split()
        return Sample(1, seconds, 0.0), Sample(1, int(words[words.index("VmHWM:") + 1]) / 2**20, 0.0)


def answers(runs: Path, requests: int = REQUESTS) -> list[Latency]:
    """Seconds from the question to the figure, the database closed before each; columns and windows drawn by
    lot.
    """
    crowd = Crowd.of(runs)
    draw = random.Random(0)
    steps = [metric for metric in crowd.curves if metric.startswith("step.")]  # 10 million rows at full size
    by_turn = [metric for metric in crowd.curves if metric not in steps]  # eight times as many
    kinds: list[tuple[str, float, Callable[[], Callable[[], Any]]]] = [
        ("overlay, all runs", 1.0, lambda: overlay(crowd, draw.choice(steps), None, (0, crowd.last))),
        ("zoom, all runs", 0.5, lambda: overlay(crowd, draw.choice(steps), None, part(crowd, draw))),
        ("zoom, six arms", 0.5, lambda: overlay(crowd, draw.choice(steps), ARMS, part(crowd, draw))),
        ("overlay, a row a turn", 1.0, lambda: overlay(crowd, draw.choice(by_turn), None, (0, crowd.last))),
        ("zoom, a row a turn", 0.5, lambda: overlay(crowd, draw.choice(by_turn), None, part(crowd, draw))),
        (
            "heat map, six arms",
            0.5,
            lambda: turns(crowd, draw.choice(crowd.turns), draw.choice(_ends(crowd, draw))),
        ),
    ]
    found = [Latency(name, bar) for name, bar, _ in kinds]
    for number in range(-1, requests):  # the first of each kind warms imports and caches up
        for latency, (_, _, prepare) in zip(found, kinds, strict=True):
            request = prepare()
            crowd.fresh()
            sample = answered(request)
            if number >= 0:
                latency.samples.append(sample)
    return found


def _ends(crowd: Crowd, draw: random.Random) -> list[tuple[int, int]]:
    return [(0, crowd.last), part(crowd, draw)]


def part(crowd: Crowd, draw: random.Random) -> tuple[int, int]:
    """A window of a hundredth to a half of all steps, small ones as likely as large ones."""
    length = max(2, round((crowd.last + 1) * 10 ** draw.uniform(-2, -0.3)))
    first = draw.randrange(max(1, crowd.last + 1 - length))
    return first, first + length - 1


def overlay(crowd: Crowd, metric: str, arms: int | None, ends: tuple[int, int]) -> Callable[[], Any]:
    """Screen Compare with one diagnostic: every run a line."""
    chosen = crowd.some(arms)
    names = list(chosen["arm"].unique())
    styles = crowd.styles(names)

    def ask() -> Any:
        view = Chosen(chosen, "step", [0] * len(chosen), Window.over(*ends, len(chosen)))
        drawn = panel(crowd.store, view, crowd.known, metric, Drawing(bands=False))
        return curves(
            [drawn], {a: styles[a] for a in names}, theme.LIGHT, AXES["step"], onsets=onsets(view)
        ).to_json()

    return ask


def turns(crowd: Crowd, name: str, ends: tuple[int, int]) -> Callable[[], Any]:
    """Screen Turns: one column of the arms that it shows at first."""
    chosen = crowd.some(ARMS)
    names = list(chosen["arm"].unique())
    styles = crowd.styles(names)

    def ask() -> Any:
        import pandas as pd

        window = Window.over(*ends, most=CELLS // min(len(names), ACROSS))
        view = Turns(
            chosen,
            "step",
            [0] * len(chosen),
            window,
            Measure(name, name, *crowd.known.words(f"turn_step.{name}")),
        )
        maps = view.heats(crowd.store, names, extreme=False)
        shades = colour_scale(view.measure.unit, pd.concat([m.cells["value"] for m in maps]).dropna())
        return heat(maps, view.measure, shades, styles, theme.LIGHT, window, AXES["step"]).to_json()

    return ask


def missing() -> str | None:
    """What the comparison lacks on this machine; None when it can run."""
    absent = [str(path) for path in (PYTHON, SCRIPT) if not path.is_file()]
    return (
        f"{' and '.join(absent)} not found: type `make bench-browse` in a checkout of sorl"
        if absent
        else None
    )


def peers(
    folder: Path, steps: int, counts: str, ours: Callable[[int], tuple[float, float]]
) -> Iterator[Peer]:
    """Each tool with more and more runs, `ours` with as many; raises RuntimeError with the last words of one
    that died.

    `ours` gives seconds by the clock and of CPU time for so many runs.
    """
    for tool in TOOLS:
        command = [
            str(PYTHON),
            str(SCRIPT),
            tool,
            str(folder / tool),
            "--steps",
            str(steps),
            "--runs",
            counts,
        ]
        with (
            (folder / f"{tool}.log").open("w+") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                seconds, cpu = ours(json.loads(line)["runs"])
                yield Peer(**json.loads(line), ours_s=seconds, ours_cpu_s=cpu)
        if process.returncode:
            raise RuntimeError(f"{tool} ended:\n{(folder / f'{tool}.log').read_text()[-3000:]}")
