"""Identities over time, from the witnesses of a run alone: no stored weights and no batch.

Order: from the tokens to the sampler. Tolerances follow from the rounding of the numbers that are compared.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sorl.audit.declaration import segment_files
from sorl.audit.registry import IDENTITIES, WITNESS, identity
from sorl.measures.evidence import Missing
from sorl.spec.evidence import Check

Row = dict[str, Any]

# Unit roundoff of the formats that weights are kept in: the largest relative error of rounding to nearest.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SUBNORMAL = 2.0**-25  # of float16: the largest error of rounding near 0
SUM = 2.0**-53  # of a float64, in which fingerprints are added up
NORM = 1e-3  # share, of norms of gradients that are summed in float32
# Random signs make a sum of n errors of size e larger than DEVIATIONS e sqrt(n) once in 1e13 (Hoeffding).
DEVIATIONS = 8.0
# A step of Adam is lr m / sqrt(v), which may be far below lr: a still weight is checked only where a
# hundredth of lr would show.
VISIBLE = 100.0
STILL_STEPS = 3  # that a layer must stand still while others move: a critic's head of 0 stops one at first
TRAINED = ("policy", "critic")
ADAPTIVE = ("Adam", "AdamW")


@dataclass(frozen=True)
class WitnessTables:
    """Rows of the tables that hold what a run was witnessed to do."""

    witness: Sequence[Row] = ()
    witness_batch: Sequence[Row] = ()
    minibatch: Sequence[Row] = ()

    def series(self, network: str) -> dict[str, list[Row]]:
        """The rows of each layer of a network, by step."""
        return self._by_network.get(network, {})

    def layers(self, network: str) -> dict[str, list[Row]]:
        """The rows of each layer of a network, by step. Raises Missing where it has none."""
        if network not in self._by_network:
            raise Missing(f"the weights of the {network}")
        return self._by_network[network]

    def updates(self, step: int) -> list[Row]:
        """The updates of a step."""
        return self._updates.get(step, [])

    @cached_property
    def _by_network(self) -> dict[str, dict[str, list[Row]]]:
        found: dict[str, dict[str, list[Row]]] = {}
        for row in sorted(self.witness, key=lambda row: row["step"]):
            found.setdefault(row["network"], {}).setdefault(row["layer"], []).append(row)
        return found

    @cached_property
    def _updates(self) -> dict[int, list[Row]]:
        found = defaultdict(list)
        for row in self.minibatch:
            found[row["step"]].append(row)
        return dict(found)


# ---- reading ----

_COLUMNS: dict[str, tuple[str, ...]] = {
    "witness": (),
    "witness_batch": (),
    "minibatch": ("step", "update", "grad_norm", "grad_norm_after", "critic_grad_norm"),
}


def witness_tables(folder: Path) -> WitnessTables:
    """Return what a run's folder holds of its witnesses; segments that cannot be read are left out."""
    return WitnessTables(**{table: _rows(folder, table, columns) for table, columns in _COLUMNS.items()})


def _rows(folder: Path, table: str, columns: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for file in segment_files(folder, table):
        with suppress(OSError, pa.ArrowException):
            present = set(pq.read_schema(file).names)
            wanted = [name for name in columns if name in present] if columns else None
            found += pq.read_table(file, columns=wanted).to_pylist()
    return found


# ---- checking ----


def witness_checks(tables: WitnessTables, names: Sequence[str] = ()) -> Iterator[Check]:
    """Check the identities over time, all or those of `names`; nothing where a run has no witnesses.

    An identity is one check: its first violation, else the closest shave. What could not be checked is
    another one.
    """
    if not tables.witness and not tables.witness_batch:
        return
    last = max(row["step"] for row in (*tables.witness, *tables.witness_batch))
    for one in IDENTITIES.values():
        if one.reads != WITNESS or (names and one.name not in names):
            continue
        for check in _summary(one.checks(tables)):
            yield one.named(check, last if check.step < 0 else check.step)


def _summary(checks: Sequence[Check]) -> Iterator[Check]:
    """The first violation, else the closest shave; and what was not checked."""
    measured = [check for check in checks if not check.missing]
    broken = [check for check in measured if check.violated]
    if broken:
        yield _first_violation(broken, {check.step for check in measured})
    elif measured:
        yield max(measured, key=lambda check: check.tolerance_share)
    lacking = [check for check in checks if check.missing]
    if lacking and not broken:
        yield lacking[-1]


def _first_violation(broken: Sequence[Check], steps: Iterable[int]) -> Check:
    """The largest violation of the first step with one; it says since when."""
    first = min(check.step for check in broken)
    there = [check for check in broken if check.step == first]
    worst = max(there, key=lambda check: check.tolerance_share)
    layers = tuple(dict.fromkeys(chain.from_iterable(check.layers for check in there)))
    words = [worst.says] if worst.says else []
    words.append(_since(first, {check.step for check in broken}, steps))
    earlier = [step for step in steps if step < first]
    return replace(worst, layers=layers, says="; ".join(words), holds_until=max(earlier, default=None))


def _since(first: int, broken: set[int], steps: Iterable[int]) -> str:
    """Say until when an identity holds, and whether it stays broken."""
    before = [step for step in steps if step < first]
    after = {step for step in steps if step >= first}
    if broken == after and len(after) > 1:
        since = f"broken from {first}"
    elif len(broken) == 1:
        since = f"broken in {first} alone"
    else:
        since = f"broken in {first} and {len(broken) - 1} of the {len(after) - 1} steps after it"
    return f"holds until step {max(before)}, {since}" if before else since


def named(row: Row) -> str:
    """The layer of a row, with its network."""
    return f"{row['network']} {row['layer']}"


def rounding(row: Row) -> float:
    """How far two sums of the same entries may be apart, whatever the order of adding."""
    entries = float(row["sampled"])
    return SUM * entries * math.sqrt(entries) * _finite(row["fingerprint_norm"])


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def compare(row: Row, measured: float, expected: float, tolerance: float, says: str = "") -> Check:
    """Compare two numbers of a layer; NaN is equal to NaN."""
    both = math.isfinite(measured) and math.isfinite(expected)
    same = str(measured) == str(expected)
    gap = abs(measured - expected) if both else math.inf
    gap = 0.0 if same else gap
    check = Check(
        step=row["step"],
        gap=gap,
        tolerance=tolerance,
        logged=measured,
        expected=expected,
        layers=(named(row),),
    )
    return replace(check, says=says) if check.violated else check


def step_with(rows: Sequence[Row], fingerprint: float, tolerance: float, column: str) -> int | None:
    """The last of these steps whose `column` is this fingerprint."""
    for row in reversed(rows):
        known = row[column]
        if known is not None and abs(known - fingerprint) <= tolerance:
            return int(row["step"])
    return None


# ---- the identities ----


@identity(
    "tokens were encoded again or shifted, or the loss mask was changed, on the way to the trainer",
    formula="checksum(token ids, loss mask) as sampled = the same as trained",
    innocent="Rows are cut to a length on purpose, or padded inside, between sampler and trainer.",
    change="Compare one row before and after the data loader; keep the sampler's ids from end to end.",
    reads=WITNESS,
)
def trained_tokens(tables: WitnessTables) -> Iterator[Check]:
    """Tokens and loss masks that are trained on are those that were sampled."""
    for row in tables.witness_batch:
        sampled = row["sampled_checksum"]
        trained = row["trained_checksum"]
        if sampled is None or trained is None:
            yield Check(step=row["step"], missing="needs the tokens and loss masks as sampled and as trained")
            continue
        gap = float(trained != sampled)
        says = "the checksums of the rows differ" if gap else ""
        yield Check(
            step=row["step"],
            gap=gap,
            tolerance=0.0,
            logged=float(trained),
            expected=float(sampled),
            says=says,
        )
    if not tables.witness_batch:
        raise Missing("the tokens and loss masks as sampled and as trained")


@identity(
    "the weight sync is late or broken: rollouts come from other weights than the log says",
    formula="fingerprint(sampler, step) = fingerprint(policy, rollout_step), to the precision of the sampler",
    innocent="The sampler quantises or packs its weights, or LoRA weights are merged in it alone.",
    change="Compare one tensor after each sync; look for tied embeddings, a copy, a sync that fails.",
    reads=WITNESS,
)
def sampler_weights(tables: WitnessTables) -> Iterator[Check]:
    """The sampler's weights are the policy's of the step that it claims."""
    policy = tables.series("policy")
    for layer, rows in tables.layers("sampler").items():
        for row in rows:
            yield _sampled(row, policy.get(layer, []))


def _sampled(row: Row, policy: Sequence[Row]) -> Check:
    """Compare the sampler's layer with that of the step that it claims."""
    claimed = row["step"] if row["of_step"] is None else row["of_step"]
    source = next((one for one in policy if one["step"] == claimed), None)
    here = {"step": row["step"], "layers": (named(row),)}
    if source is None:
        return Check(missing=f"needs the policy's weights of step {claimed} ({row['layer']})", **here)
    if row["parameters"] != source["parameters"]:
        return Check(missing=f"needs the sampler's weights by the policy's names ({row['layer']})", **here)
    if row["dtype"] not in ROUNDOFF or source["dtype"] not in ROUNDOFF:
        return Check(missing=f"needs weights that are not scaled: the sampler has {row['dtype']}", **here)
    column = "fingerprint_bfloat16" if row["dtype"] == "bfloat16" else "fingerprint_start"
    tolerance = rounding(row)
    if row["dtype"] == "float16" != source["dtype"]:
        error = ROUNDOFF["float16"] * row["fingerprint_norm"] + SUBNORMAL * math.sqrt(row["sampled"])
        tolerance += DEVIATIONS * error
    check = compare(row, row["fingerprint_start"], source[column], tolerance)
    if not check.violated:
        return check
    if row["started_at"] != source["started_at"]:
        return Check(missing=f"needs the weights of step {claimed}: a resume lies between", **here)
    return replace(check, says=_whose(row, policy, claimed, column, tolerance))


def _whose(row: Row, policy: Sequence[Row], claimed: int, column: str, tolerance: float) -> str:
    """Say whose weights a sampler has that are not those that it claims."""
    if row["dtype"] == "float32" and column == "fingerprint_start":
        source = [one for one in policy if one["step"] == claimed]
        if step_with(source, row["fingerprint_start"], tolerance, "fingerprint_bfloat16") is not None:
            return f"the weights of step {claimed}, rounded to bfloat16"
    other = step_with(policy, row["fingerprint_start"], tolerance, column)
    if other is None:
        return "the weights of no step that is recorded"
    age = claimed - other
    unit = "step" if abs(age) == 1 else "steps"
    return f"the weights of step {other}, {abs(age)} {unit} {'old' if age > 0 else 'ahead'}"


@identity(
    "the KL term pulls towards a model that moves",
    formula="fingerprint(reference, t) = fingerprint(reference, 0)",
    innocent="The reference is replaced on purpose, as in methods that move it every few hundred steps.",
    change="Load the reference from the checkpoint that training began with, copy it, and freeze it.",
    reads=WITNESS,
)
def reference_still(tables: WitnessTables) -> Iterator[Check]:
    """The reference never moves."""
    policy = tables.series("policy")
    for layer, rows in tables.layers("reference").items():
        if any(row["trainable"] for row in rows):
            raise Missing("a reference that is meant to stand still")
        first = rows[0]
        for row in rows:
            expected = first["fingerprint_start"]
            check = compare(row, row["fingerprint_start"], expected, rounding(row))
            if check.violated:
                whose = step_with(policy.get(layer, []), check.logged, rounding(row), "fingerprint_start")
                says = "other weights than before"
                says = says if whose is None else f"the policy's weights of step {whose}"
                check = replace(check, says=says)
            yield check


@identity(
    "something else than the optimizer changed the weights: a checkpoint, a sync, a merge, a bug",
    formula="fingerprint(policy, start of t + 1) = fingerprint(policy, end of t)",
    innocent="Weights are reset, averaged or merged on purpose between steps.",
    change="Look at what runs between two steps: checkpoints, syncs, callbacks, an average of weights.",
    reads=WITNESS,
)
def weights_between_steps(tables: WitnessTables) -> Iterator[Check]:
    """A step starts from the weights that the step before ended with."""
    tables.layers("policy")
    for network in TRAINED:
        for rows in tables.series(network).values():
            for before, row in pairwise(rows):
                if row["step"] == before["step"] + 1 and before["fingerprint_end"] is not None:
                    yield _between(rows, before, row)


def _between(rows: Sequence[Row], before: Row, row: Row) -> Check:
    tolerance = rounding(row)
    check = compare(row, row["fingerprint_start"], before["fingerprint_end"], tolerance)
    if not check.violated:
        return check
    if row["started_at"] != before["started_at"]:
        return Check(step=row["step"], missing="needs a step before: a resume lies between")
    earlier = [one for one in rows if one["step"] < row["step"]]
    loaded = step_with(earlier, row["fingerprint_start"], tolerance, "fingerprint_start")
    if loaded is None:
        return replace(check, says="weights that no step before had")
    return replace(check, says=f"the weights with which step {loaded} began")


@identity(
    "steps of the optimizer were skipped, or taken twice",
    formula="optimizer steps of a step = its updates with a finite gradient",
    innocent="A loss scaler skipped a step because a gradient overflowed.",
    change="Count optimizer.step() in the loop: accumulation, a scaler, a callback that steps again.",
    reads=WITNESS,
)
def optimizer_steps(tables: WitnessTables) -> Iterator[Check]:
    """The optimizer takes a step for each update."""
    tables.layers("policy")
    for network in TRAINED:
        rows = next(iter(tables.series(network).values()), [])
        for row in rows:
            if row["optimizer_steps"] is None:
                yield Check(step=row["step"], missing="needs the steps of the optimizer")
                continue
            due = steps_due(tables.updates(row["step"]), network)
            if due is None:
                yield Check(step=row["step"], missing="needs the updates of the step")
                continue
            taken = row["optimizer_steps"]
            gap = float(abs(taken - due))
            says = f"{network}: {taken} steps for {due} updates" if gap else ""
            yield Check(
                step=row["step"], gap=gap, tolerance=0.0, logged=float(taken), expected=float(due), says=says
            )


def steps_due(updates: Sequence[Row], network: str) -> int | None:
    """How many steps an optimizer owes for these updates; None where there are none.

    None is due for a gradient that is not finite, nor for one that an early stop of the updates sets to 0.
    """
    if not updates:
        return None
    due = 0
    for update in updates:
        before = update.get("grad_norm" if network == "policy" else "critic_grad_norm")
        after = update.get("grad_norm_after") if network == "policy" else None
        if before is None and network == "critic":
            return None
        stopped = before is not None and (not math.isfinite(before) or after == 0 < before)
        due += not stopped
    return due


@identity(
    "the optimizer has other weights than those that are used, or something else moved them",
    formula="0 < |w(end) - w(start)| <= sum of lr x the largest step of the optimizer, for each layer",
    innocent="The optimizer's steps are too small for the number format of the weights.",
    change="Compare the optimizer's parameters with those of the model that is used: a copy, a wrapper.",
    reads=WITNESS,
)
def policy_moves(tables: WitnessTables) -> Iterator[Check]:
    """A step moves a layer if and as far as the optimizer can."""
    tables.layers("policy")
    for network in TRAINED:
        for rows in tables.series(network).values():
            for row in rows:
                if row["trainable"] and row["moved"] is not None:
                    yield _moves(row, Reach.of(row))


@dataclass(frozen=True)
class Reach:
    """How far an optimizer can carry a layer in a step."""

    kind: str | None  # None: not known
    momentum: float = 0.0
    decay: float = 0.0
    betas: Sequence[float] = field(default_factory=lambda: (0.0, 0.0))

    @classmethod
    def of(cls, row: Row) -> Reach:
        """Read the optimizer of a row."""
        told = json.loads(row["optimizer"]) if row["optimizer"] else {}
        return cls(
            told.get("kind"),
            float(told.get("momentum", 0.0)),
            float(told.get("weight_decay", 0.0)),
            tuple(told.get("betas", (0.0, 0.0))),
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD without momentum, whose step is the gradient times the learning rate."""
        return self.kind == "SGD" and not self.momentum

    def bound(self, row: Row) -> float | None:
        """The furthest that the entries looked at can have moved; None where the optimizer is not known."""
        if self.is_plain:
            bound = row["gradient_path"] * (1 + NORM)
        elif self.kind in ADAPTIVE:
            bound = row["lr_sum"] * math.sqrt(row["sampled"]) * adam_bound(*self.betas) * (1 + NORM)
        else:
            return None
        size = row["fingerprint_norm"] + bound
        rounded = row["optimizer_steps"] * ROUNDOFF.get(row["dtype"], 1.0) * 2
        return float(bound + (row["lr_sum"] * self.decay + rounded) * size)

    def must_show(self, row: Row) -> bool:
        """Whether a step of this size moves weights of this size in their number format."""
        steps = max(1, row["optimizer_steps"])
        least = VISIBLE * ROUNDOFF.get(row["dtype"], 1.0) * row["weight_norm"]
        if self.kind == "SGD":
            return bool(row["gradient_path"] / steps > least)
        return bool(row["lr_sum"] / steps > least / math.sqrt(row["parameters"]))


def adam_bound(beta1: float, beta2: float) -> float:
    """The largest |m| / sqrt(v) of Adam, both with their bias taken off, over any gradients (Cauchy-Schwarz).

    c(t) = (1 - b1) / sqrt(1 - b2) sqrt(sum over k < t of (b1^2 / b2)^k) sqrt(1 - b2^t) / (1 - b1^t).
    """
    if not 0 < beta2 < 1 or not 0 <= beta1 < 1:
        return math.inf
    share = beta1 * beta1 / beta2
    if share >= 1:
        return math.inf
    largest = 0.0
    total = 0.0
    for t in range(1, 20_000):
        total += share ** (t - 1)
        corrected = math.sqrt(1 - beta2**t) / (1 - beta1**t)
        largest = max(largest, math.sqrt(total) * corrected)
    limit = math.sqrt(1 / (1 - share))
    return (1 - beta1) / math.sqrt(1 - beta2) * max(largest, limit)


def _moves(row: Row, reach: Reach) -> Check:
    here: dict[str, Any] = {"step": row["step"], "layers": (named(row),)}
    steps = row["optimizer_steps"]
    moved = row["moved"]
    if steps is None:
        return Check(missing="needs the optimizer's steps, gradients and learning rates", **here)
    numbers = [moved, row["gradient_path"], row["lr_sum"], row["weight_norm"]]
    if not all(map(math.isfinite, numbers)):
        return Check(missing="needs weights and gradients that are finite", **here)
    if not steps or not row["lr_sum"]:
        says = "it moved, and its optimizer took no step" if moved else ""
        return Check(gap=moved, tolerance=0.0, logged=moved, expected=0.0, says=says, **here)
    if not moved and row["gradient_path"]:
        if not reach.must_show(row):
            why = f"needs steps that {row['dtype']} can hold: these are too small for its weights"
            return Check(missing=why, **here)
        length = row["gradient_path"]
        says = f"it stood still; {reach.kind} took {steps} steps with a gradient"
        return Check(gap=length, tolerance=0.0, logged=0.0, expected=length, says=says, **here)
    bound = reach.bound(row)
    if bound is None:
        return Check(gap=0.0, tolerance=0.0, logged=moved, expected=moved, **here)
    least = row["moved_least"]
    says = f"further than {steps} steps of {reach.kind} can go" if least > bound else ""
    gap = max(0.0, least - bound)
    return Check(gap=gap, tolerance=0.0, logged=least, expected=bound, says=says, **here)


@identity(
    "a layer is left out of the optimizer, cut off from the loss, or not frozen although it should be",
    formula="|w(end) - w(start)| = 0 for frozen layers alone",
    innocent="A layer is used in some steps only, such as an expert that no token chooses.",
    change="Look at requires_grad, at the parameter groups, and for a detach() on the way to the loss.",
    reads=WITNESS,
)
def frozen_layers(tables: WitnessTables) -> Iterator[Check]:
    """The layers that stand still are those that are frozen."""
    tables.layers("policy")
    for network in TRAINED:
        series = tables.series(network)
        scale = _steps_per_entry(series)
        for rows in series.values():
            yield from _frozen(rows, scale)


def _steps_per_entry(series: dict[str, list[Row]]) -> dict[int, float]:
    """Of each step the root mean square by which an entry of the layer moved that moved most."""
    scale: dict[int, float] = {}
    for rows in series.values():
        for row in rows:
            if row["moved"] is not None and math.isfinite(row["moved"]):
                own = row["moved"] / math.sqrt(row["parameters"])
                scale[row["step"]] = max(scale.get(row["step"], 0.0), own)
    return scale


def _frozen(rows: Sequence[Row], scale: dict[int, float]) -> Iterator[Check]:
    """Check a layer: a frozen one never moves, one to be trained does not stop while others go on."""
    rows = [row for row in rows if row["moved"] is not None and scale.get(row["step"])]
    still: list[Row] = []  # at the end of the run, without a break
    for row in rows:
        if not row["trainable"]:
            says = "it is frozen, and moved" if row["moved"] else ""
            yield compare(row, row["moved"], 0.0, 0.0, says)
            continue
        still = [*still, row] if _cut_off(row, scale[row["step"]]) else []
    moving = [row for row in rows if row["trainable"] and row not in still]
    for row in moving:
        yield Check(step=row["step"], gap=0.0, tolerance=0.0, layers=(named(row),))
    for row in still if len(still) >= STILL_STEPS else ():
        says = "it is to be trained, and stands still while others move"
        yield Check(step=row["step"], gap=1.0, tolerance=0.0, logged=0.0, says=says, layers=(named(row),))


def _cut_off(row: Row, others: float) -> bool:
    """Whether a layer stands still, and not because its steps are lost to rounding."""
    if row["moved"]:
        return False
    if row["gradient_path"] is not None:
        return bool(row["gradient_path"] == 0)
    size = row["weight_norm"] / math.sqrt(row["parameters"])
    return bool(others > VISIBLE * ROUNDOFF.get(row["dtype"], 1.0) * size)
