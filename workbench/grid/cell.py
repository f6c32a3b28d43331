"""A cell of a grid, one arm with one seed: its names, its settings by dotted key, what sets it apart, its
cost.
"""

import hashlib
import json
import math
import platform
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel

from sorl.algorithms import resolve
from sorl.grid import cost
from sorl.grid.machine import REFERENCE, Machine, probe
from sorl.grid.process import cores
from sorl.objective import Algorithm
from sorl.objective.slot import in_words
from sorl.spec import COSMETIC, CollapseSettings, InputError, RunSettings
from sorl.spec.files import leaves
from sorl.spec.names import FolderName, slug
from sorl.spec.upgrade import with_first_collapse_rule

_PACES = """
    SELECT config, seconds / steps AS pace FROM run WHERE status = 'finished' AND steps > 0 AND seconds > 0
    AND versions->>'$.machine' = ? ORDER BY ended_at DESC LIMIT 50
"""


@dataclass(frozen=True)
class Arm:
    """What the seeds of an arm share: its name and the dotted keys that the axes or the control set."""

    label: str
    choices: dict[str, Any]
    control: bool = False  # a named single change, not crossed with the axes


@dataclass(frozen=True)
class Cell:
    """One run of a grid, an arm with a seed: what trains and its names."""

    experiment: FolderName
    arm: str
    seed: int
    settings: RunSettings
    resolved: Algorithm
    control: bool = False
    generation: int = 1  # counts its starts: from nothing, or from a checkpoint that its guard went back to
    own_hash: str = ""  # of its settings before a guard changed them

    @property
    def algorithm(self) -> str:
        """The name of its algorithm; of a variant, that of its base."""
        return self.resolved.name

    @cached_property
    def config_hash(self) -> str:
        """The hash of its settings, before a guard changed them."""
        return self.own_hash or config_hash(self.settings)

    @cached_property
    def run_id(self) -> FolderName:
        """The name of its folder: arm, seed, digits of experiment and settings (two grids may share a
        control).
        """
        digest = hashlib.sha256(f"{self.experiment} {self.config_hash}".encode()).hexdigest()[:8]
        start = f"-g{self.generation}" if self.generation > 1 else ""
        return FolderName(f"{slug(self.arm)}-s{self.seed}-{digest}{start}", f"the run of arm '{self.arm}'")

    @property
    def first(self) -> Self:
        """The same cell at its first start."""
        return replace(self, generation=1)


def config_hash(settings: RunSettings) -> str:
    """SHA-256 of the canonical JSON of the resolved settings (sorted keys) without the cosmetic ones."""
    flat = decisive(settings)
    if settings.collapse == CollapseSettings():
        flat = with_first_collapse_rule(flat)
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def decisive(settings: RunSettings, *exclude: str) -> dict[str, Any]:
    """Return every setting that changes a number, but those of the tables `exclude`, by dotted key."""
    flat = flatten(settings.model_dump(mode="json", exclude=set(exclude)))
    return {key: value for key, value in flat.items() if key not in COSMETIC}


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys, an algorithm as a whole; InputError for a key given dotted and in a
    table.
    """
    flat: dict[str, Any] = {}
    for key, value in leaves(table, ("algorithm",)):
        if key in flat:
            raise InputError(f"'{key}' is given twice, once dotted and once in a table; keep one of them")
        flat[key] = value
    return flat


def expand(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`{"learn.staleness": 8}` as `{"learn": {"staleness": 8}}`; InputError for a key that is given twice."""
    nested: dict[str, Any] = {}
    for key, value in flatten(table).items():
        *path, last = key.split(".")
        if not all((*path, last)):
            raise InputError(f"key '{key}' in {where} has an empty part; write it like 'learn.staleness'")
        node: Any = nested
        for part in path:
            node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last in node:
            raise InputError(
                f"'{key}' in {where} is given twice, or is a value and a table at once; keep one of them"
            )
        node[last] = value
    return nested


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; an algorithm as a whole. The inputs stay as they are."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping) and key != "algorithm"
        merged[key] = merge(under, value) if both else value  # type: ignore[arg-type]
    return merged


@cache
def settings_keys(model: type[BaseModel] = RunSettings, prefix: str = "") -> tuple[str, ...]:
    """Every setting of a run as a dotted key, in the order of the declaration."""
    keys: list[str] = []
    for name, declared in model.model_fields.items():
        types = (declared.annotation, *get_args(declared.annotation))
        inner = [a for a in types if isinstance(a, type) and issubclass(a, BaseModel)]
        keys += settings_keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return tuple(keys)


@cache
def short(key: str) -> str:
    """Return the shortest ending of a dotted key that no other setting shares: `learn.staleness` ->
    `staleness`.
    """
    if key.startswith("slots."):
        return key.removeprefix("slots.")
    parts = key.split(".")
    for length in range(1, len(parts)):
        ending = ".".join(parts[-length:])
        if sum(f".{known}".endswith(f".{ending}") for known in settings_keys()) == 1:
            return ending
    return key


def differing(arms: Mapping[str, RunSettings]) -> dict[str, dict[str, Any]]:
    """Dotted key -> arm -> value, for every setting but the seed that is not the same in all arms."""
    flat = {
        arm: flatten(settings.model_dump(mode="json", exclude={"seed"})) for arm, settings in arms.items()
    }
    differing_rows = {}
    for key in dict.fromkeys(chain.from_iterable(flat.values())):
        row = {arm: settings.get(key) for arm, settings in flat.items()}
        if len({repr(value) for value in row.values()}) > 1:
            differing_rows[key] = row
    return differing_rows


def algorithm_label(algorithm: str | dict[str, Any]) -> str:
    """Return an algorithm's name, or its base's with the changed options: `ppo (ratio turn arithmetic)`."""
    if not isinstance(algorithm, dict):
        return str(algorithm)
    changes = ", ".join(
        f"{slot} {_short_value(value)}" for slot, value in algorithm.items() if slot != "base"
    )
    return str(algorithm.get("base", "variant")) + (f" ({changes})" if changes else "")


def arm_label(label: str, varying: Mapping[str, Any]) -> str:
    """A label and the values of the axes that vary: `ppo · staleness 8`."""
    return " · ".join(
        [label, *(f"{short(k)} {_short_value(v)}" for k, v in varying.items() if k != "algorithm")]
    )


def _short_value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(_short_value(v) for v in value.values())
    return "/".join(_short_value(v) for v in value) if isinstance(value, (list, tuple)) else str(value)


def choices(slots: Sequence[Any]) -> list[str]:
    """Each choice of one slot in a line: its kind, and the options that are not the default or not the same
    in all.
    """
    varying = {}
    for kind in dict.fromkeys(slot.kind for slot in slots):
        varying[kind] = _varying_options([slot for slot in slots if slot.kind == kind])
    return [choice(slot, varying[slot.kind]) for slot in slots]


def _varying_options(slots: Sequence[Any]) -> set[str]:
    """Return the options in which slots of one kind differ."""
    names = [option.name for option in fields(slots[0])]
    return {name for name in names if len(set(map(repr, map(attrgetter(name), slots)))) > 1}


def choice(slot: Any, wanted: Collection[str] | None = None) -> str:
    """A slot's choice in a line: its kind and its options (with `wanted`, only these and those off their
    default).
    """
    words = [slot.kind]
    for option in fields(slot):
        value = getattr(slot, option.name)
        if wanted is None or option.name in wanted or value != option.default:
            words.append(f"{option.name}={in_words(value)}")
    return " ".join(words)


def workers_for(cells: Sequence[Cell], wanted: int | None = None, slots: int | None = None) -> int:
    """Cells that train at a time: `wanted`, else one for each `threads` of the `slots`; never more than
    `cells`.
    """
    threads = max((cell.settings.threads for cell in cells), default=1)
    return max(1, min(len(cells), wanted or (slots or cores()) // threads))


class Estimate(NamedTuple):
    """Wall time of the cells that are left, and where the figure comes from."""

    seconds: float
    workers: int
    recorded: int  # finished runs that gave the pace; 0 = none
    size: str = "measured times of such runs"
    is_probed: bool = False

    @property
    def basis(self) -> str:
        """The origin of the figure, to be printed with it."""
        if self.recorded:
            return f"pace of {self.recorded} finished runs on this machine"
        machine = "a probe of this machine" if self.is_probed else "the speed of another machine, not a probe"
        return f"no run recorded yet: estimated from {self.size} and {machine}"

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing to run"
        return f"about {duration(self.seconds)}, {self.workers} at a time ({self.basis})"

    def as_dict(self) -> dict[str, Any]:
        """Return for JSON."""
        return {
            "seconds": round(self.seconds),
            "workers": self.workers,
            "basis": self.basis,
            "is_probed": self.is_probed,
        }


def duration(seconds: float | None) -> str:
    """Seconds in words: `42 s`, `3 min 05 s`, `1 h 20 min`; `?` if unknown."""
    if seconds is None:
        return "?"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rough(settings: RunSettings, algorithm: Algorithm, machine: Machine = REFERENCE) -> float:
    """Seconds an iteration on `machine`; of a model that is not here, as if it were the embedded policy."""
    network = _network(settings)
    if network is None:
        return cost.embedded_seconds(settings, algorithm, machine)
    return cost.model_seconds(settings, algorithm, network, machine)


def _network(settings: RunSettings) -> cost.Network | None:
    return None if settings.model is None else cost.network_of(settings.model)


def estimate(
    cells: Sequence[Cell],
    paces: Sequence[float] = (),
    workers: int | None = None,
    warm_starts: Sequence[RunSettings] = (),
    machine: Machine = REFERENCE,
) -> Estimate:
    """Wall time of `cells` and of the warm starts to make; `paces`: recorded times an iteration over the
    rough cost.
    """
    pace = median(paces) if paces else 1.0
    count = workers_for(cells, workers)
    with_evaluations = not paces  # recorded paces hold them
    each = [0.0, *(_cell_seconds(cell, pace, machine, with_evaluations) for cell in cells)]
    warm = pace * sum(_imitation_seconds(start, machine) for start in warm_starts)
    # The longest cell may come last and leave the other workers idle: never below it.
    whole = warm + max(sum(each) / count, *each)
    return Estimate(whole, count, len(paces), _size_in_words(cells), machine.is_probed)


def _cell_seconds(cell: Cell, pace: float, machine: Machine, with_evaluations: bool) -> float:
    """Seconds of a cell at `pace` times its rough cost on `machine`."""
    settings = cell.settings
    network = _network(settings)
    rates = cost.machine_for(settings, network, machine)
    before = settings.fork.at_step if settings.fork is not None else 0  # trained by its parent
    training = pace * rough(settings, cell.resolved, rates) * (settings.planned_iterations - before)
    if with_evaluations:
        training += cost.evaluation_seconds(settings, network, rates)
    return machine.slowness * cost.START + min(training, settings.stop.seconds or math.inf)


def _imitation_seconds(start: RunSettings, machine: Machine) -> float:
    network = _network(start)
    return cost.warm_start_seconds(start, network, cost.machine_for(start, network, machine))


def _size_in_words(cells: Sequence[Cell]) -> str:
    """Return what a model's estimate is made of: of the first cell with one."""
    for settings in (cell.settings for cell in cells if cell.settings.model is not None):
        network = _network(settings)
        if network is None:
            return "measured times of the embedded policy, because the model is not on this machine,"
        tokens = settings.learn.episodes * cost.Tokens.of(settings).all
        rounded = float(f"{tokens:.2g}")
        return f"{network.parameters / 1e6:.3g} M parameters, {rounded:,.0f} tokens a step"
    return "measured times of the embedded policy"


def time_of(cells: Sequence[Cell], runs: Path, workers: int | None) -> Estimate:
    """Wall time of `cells` on this machine, at the pace of the finished runs in `runs` on this kind of
    machine; without one, by a probe. Runs of the embedded policy say nothing of a model.
    """
    from sorl.learn.warmstart import is_cached, key
    from sorl.store.reader import Reader

    system = f"{platform.system()} {platform.machine()}"
    is_model = any(cell.settings.model is not None for cell in cells)
    paces = []
    recorded = Reader(runs).rows(_PACES, [system]).rows if (runs / "sorl.duckdb").is_file() else []
    for config, pace in recorded:
        # a run of another version of sorl: its settings may no longer exist
        with suppress(ValueError, InputError):
            settings = RunSettings.model_validate_json(config)
            if (settings.model is not None) == is_model:
                paces.append(float(pace) / rough(settings, resolve(settings.algorithm, settings.slots)))
    warm_starts = {
        key(cell.settings): cell.settings for cell in cells if not is_cached(cell.settings, runs / ".cache")
    }
    threads = max((cell.settings.threads for cell in cells), default=1)
    machine = REFERENCE if paces or not cells else probe(threads)
    return estimate(cells, paces, workers, list(warm_starts.values()), machine)
