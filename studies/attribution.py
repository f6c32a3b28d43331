"""How often the attribution is right: planted faults against the turn and the span that were named, with
intervals.

A planted batch goes through what every run goes through: measured, recorded, boxed, synced, and asked for its
culprit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from sorl.agent.episode import Episode, collate
from sorl.algorithms import resolve
from sorl.batch import Batch
from sorl.diagnosis.attribution import attribute
from sorl.grid.folder import change
from sorl.learn.blackbox import Packer
from sorl.measures.evidence import Evidence, Rollouts, StepEvidence
from sorl.objective.pipeline import policy_loss, prepare
from sorl.recording.recorder import Recorder
from sorl.spec import BatchesSettings, InputError, RecordSettings, RunSettings
from sorl.store import batches
from sorl.store.reader import Reader
from sorl.store.sync import sync
from studies import stored
from studies.planted import (
    KINDS,
    MOST_TURNS,
    POLICIES,
    SAMPLERS,
    UPDATES,
    VISIBLE,
    WEAK,
    Drawn,
    Kind,
    healthy,
)

PLANTED = (500, 150, 200)  # faults, weak ones, batches without any
STEPS = 50  # a run
SEED = 11  # of the batches; the attribution was built on those of another
_SETTINGS = RunSettings(
    algorithm="ppo", record=RecordSettings(tokens=1, batches=BatchesSettings(every=1, mb=4000, weights_mb=0))
)
_RANKS = ("mass_rank", "gradient_rank", "drift_rank")


@dataclass(frozen=True)
class Plan:
    """One batch to be made: what is planted (None: nothing), how strong, in a trajectory of how
    many turns.
    """

    number: int
    kind: Kind | None
    strength: float
    turns: int
    policy: str
    sampler: str


@dataclass(frozen=True)
class Planted:
    """A plan and where its fault lies: turn and positions in trajectory 0."""

    plan: Plan
    turn: int
    span: np.ndarray


def plans(visible: int, weak: int, untouched: int) -> list[Plan]:
    """Kinds, policies, samplers and turn counts in turn, so that each meets each; strengths likewise."""
    names = [(p, s) for p in POLICIES for s in SAMPLERS]
    found: list[Plan] = []
    for count, strengths in ((visible, VISIBLE), (weak, WEAK)):
        for i in range(count):
            kind = KINDS[i % len(KINDS)]
            j = i // len(KINDS)
            policy, sampler = names[j % len(names)]
            strength = strengths[(j // len(names)) % len(strengths)]
            turns = int(np.random.default_rng([7, len(found)]).integers(1, MOST_TURNS + 1))
            found.append(Plan(len(found), kind, strength, turns, policy, sampler))
    for i in range(untouched):
        policy, sampler = names[i % len(names)]
        found.append(Plan(len(found), None, 0.0, 1 + i % MOST_TURNS, policy, sampler))
    return found


def cases(todo: Sequence[Plan], say: Callable[[int, int], None] = lambda done, of: None) -> Iterator[Case]:
    """What the attribution and the ranks of view `culprit` say of each plan; runs live in a
    temporary folder.
    """
    for start in range(0, len(todo), STEPS):
        part = todo[start : start + STEPS]
        with tempfile.TemporaryDirectory(prefix="sorl-planted-") as folder:
            runs = Path(folder)
            run = runs / "planted" / "planted-s0"
            change(
                run,
                {"run_id": run.name},
                experiment="planted",
                algorithm="ppo",
                arm="ppo",
                seed=0,
                status="finished",
                config=_SETTINGS.model_dump_json(),
                steps=len(part),
            )
            with Recorder(run, run.name, _SETTINGS) as recorder:
                truth = [record(recorder, step, plan) for step, plan in enumerate(part)]
            sync(runs)
            reader = Reader(runs)
            for step, planted in enumerate(truth):
                yield judged(run, reader, step, planted)
        say(start + len(part), len(todo))


# What a black box asks of a learner: one without weights.
_NO_LEARNER = SimpleNamespace(
    policy=torch.nn.Identity(),
    critic=None,
    updates=0,
    policy_parameters=[],
    optimizers={},
)


def record(recorder: Recorder, step: int, plan: Plan) -> Planted:
    """Make the batch, plant the fault, train on it in name only, and write the step down."""
    draw = np.random.default_rng([SEED, plan.number])
    drawn = healthy(draw, plan.turns, plan.policy, plan.sampler)
    turn = int(draw.integers(1, plan.turns + 1))
    span = np.zeros(0, np.int64) if plan.kind is None else plan.kind.plant(draw, drawn, turn, plan.strength)
    episodes = [_episode(drawn, row, draw) for row in range(len(drawn.tokens))]
    batch = _batch(drawn, episodes, draw)
    packer = Packer(_SETTINGS, cast(Any, _NO_LEARNER))
    packer.open(batch)
    batch = replace(prepare(resolve("ppo"), batch), group=batch.group)
    updates = list(_updates(drawn, batch, draw, step))
    recorder.batch(step, packer.close(batch, updates))
    # No token identity: where the guard runs it names the turn itself, and nothing would be left to find.
    recorder.step(step, StepEvidence(Rollouts.of(episodes, step), Evidence.stack(updates)))
    if plan.kind is not None:
        # A leaked observation joins the turns on its sides, and so the turn is that of what was trained on.
        turn = int(batch.turn[0, span[0]])
    return Planted(plan, turn, span)


def _episode(drawn: Drawn, row: int, draw: np.random.Generator) -> Episode:
    n = int(drawn.length[row])
    turns = int(drawn.turn[row].max())
    reward = float(draw.random() < 0.6)
    return Episode(
        question_id=row,
        group=row,
        tokens=drawn.tokens[row, :n].tolist(),
        written=drawn.written[row, :n].tolist(),
        log_prob=drawn.behaviour[row, :n].tolist(),
        prompt_length=int(drawn.prompt[row]),
        question="",
        gold="",
        answer=None,
        reward=reward,
        success=reward == 1.0,
        ended="max_turns",
        turns=turns,
        searches=turns,
        valid_turns=turns,
        turn_status=["search"] * turns,
    )


def _batch(drawn: Drawn, episodes: Sequence[Episode], draw: np.random.Generator) -> Batch:
    batch = collate(episodes, 0)
    return replace(
        batch,
        mask=torch.from_numpy(drawn.mask),
        turn_id=None,
        log_prob_behaviour=torch.from_numpy(drawn.behaviour).float(),
        log_prob_old=torch.from_numpy(drawn.old).float(),
        values=torch.from_numpy(draw.normal(0.6, 0.2, drawn.old.shape)).float(),
    )


def _updates(drawn: Drawn, batch: Batch, draw: np.random.Generator, step: int) -> Iterator[Evidence]:
    """The evidence of every update, by the objective that a trainer calls; nothing is stepped."""
    algorithm = resolve("ppo")
    index = 0
    for epoch, minibatches in UPDATES:
        for rows in torch.from_numpy(draw.permutation(len(drawn.tokens))).chunk(minibatches):
            part = batch.rows(rows)
            log_prob = torch.from_numpy(drawn.new[index]).float()[rows].requires_grad_()
            out = policy_loss(algorithm, part, log_prob)
            (weight,) = torch.autograd.grad(out.loss, log_prob)
            yield _evidence(part, log_prob.detach(), out.terms, weight, epoch, step)
            index += 1


def _evidence(
    part: Batch, log_prob: torch.Tensor, terms: Any, weight: torch.Tensor, epoch: int, step: int
) -> Evidence:
    assert part.advantages is not None
    one = torch.Tensor.unsqueeze
    named: dict[str, Any] = {
        name: one(getattr(terms, name), 0)
        for name in ("ratio", "active_low", "active_high", "out_of_range", "dual", "factor")
    }
    return Evidence(
        epoch=torch.tensor([epoch]),
        rollout_step=torch.tensor([step]),
        trajectory=one(part.trajectory, 0),
        mask=one(part.mask, 0),
        turn=one(part.turn, 0),
        log_prob=one(log_prob, 0),
        log_prob_old=one(part.log_prob_old, 0),
        log_prob_behaviour=one(part.need("log_prob_behaviour"), 0),
        advantages=one(part.advantages, 0),
        entropy=one(-log_prob, 0),
        gradient_weight=one(weight, 0),
        score=one(part.score, 0),
        group=one(part.group, 0),
        **named,
        scalars={"policy_loss": [float(terms.policy_loss)], "non_finite": [0.0]},
    )


def judged(run: Path, reader: Reader, step: int, planted: Planted) -> Case:
    """Compare what a user reads about the step with where the fault lies."""
    found = attribute(batches.read(run, step))
    plan = planted.plan
    first = found[0] if found else None
    named = set() if first is None else set(range(first.first, first.last + 1))
    there = set(planted.span.tolist())
    return Case(
        kind=plan.kind.name if plan.kind else "",
        strength=plan.strength,
        policy=plan.policy,
        sampler=plan.sampler,
        turns=plan.turns,
        turn=planted.turn,
        tokens=len(there),
        right_turn=first is not None
        and plan.kind is not None
        and (first.trajectory, first.turn) == (0, planted.turn),
        overlap=len(named & there) / max(1, len(named | there)),
        stands_out=first is not None and first.stands_out,
        named=sum(one.stands_out for one in found),
        **(_ledger(reader, step, planted.turn) if plan.kind else {}),
    )


def _ledger(reader: Reader, step: int, turn: int) -> dict[str, bool]:
    """Whether each rank of view `culprit` puts a row of the turn first."""
    names = ", ".join(_RANKS)
    rows: pd.DataFrame = reader.query(
        f"SELECT trajectory, turn_index, {names} FROM culprit WHERE step = ? AND least({names}) = 1", [step]
    )
    here = (rows["trajectory"] == 0) & (rows["turn_index"] == turn)
    return {rank: bool((here & (rows[rank] == 1)).any()) for rank in _RANKS}


SAME_SPAN = 0.5  # of the tokens of both spans together, that they must share
CLIP = 0.18  # ln 1.2, nats: a weaker fault moves no ratio out of the usual clip range


@dataclass(frozen=True)
class Case:
    """A batch with a fault in one turn (`kind` empty: without) and what was named first."""

    kind: str
    strength: float  # nats a token
    policy: str
    sampler: str
    turns: int  # of the trajectory
    turn: int
    tokens: int  # of the fault
    right_turn: bool  # trajectory and turn
    overlap: float  # tokens in both spans / tokens in either
    stands_out: bool  # the first one, by the rule's own measure
    named: int  # turns that stand out
    mass_rank: bool | None = None  # view culprit has the turn first by ratio mass
    gradient_rank: bool | None = None
    drift_rank: bool | None = None

    @property
    def visible(self) -> bool:
        """A fault that can move a ratio out of the clip range."""
        return bool(self.kind) and self.strength >= CLIP

    @property
    def right_span(self) -> bool:
        """The right turn, and a span that shares at least half of the tokens of both."""
        return self.right_turn and self.overlap >= SAME_SPAN


def wilson(k: int, n: int) -> str:
    """`k/n = share [low, high]`, the 95 % interval of Wilson (1927)."""
    from scipy.stats import binomtest

    if not n:
        return "-"
    interval = binomtest(k, n).proportion_ci(0.95, method="wilson")
    return f"{k}/{n} = {100 * k / n:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _counted(cases: Sequence[Case], right: Callable[[Case], bool | None]) -> str:
    return wilson(sum(bool(right(case)) for case in cases), len(cases))


def page(cases: Sequence[Case]) -> str:
    """Markdown: the rates over all, by what was planted and how strongly, and of batches without a fault."""
    faulty = [case for case in cases if case.kind]
    visible, weak = ([case for case in faulty if case.visible is seen] for seen in (True, False))
    clean = [case for case in cases if not case.kind]
    lines = ["| faults | right turn first | right span | first one stands out |", "| --- | --- | --- | --- |"]
    lines += [
        _row("all that can leave the clip range", visible),
        _row("too weak for that, counted apart", weak),
    ]
    lines += _rows(visible, lambda c: c.kind, lambda c: f"`{c.kind}`")
    lines += _rows(faulty, lambda c: c.strength, lambda c: f"{c.strength:g} nats a token")
    lines += _rows(visible, lambda c: c.policy, lambda c: f"policy: {c.policy}")
    lines += _rows(visible, lambda c: c.sampler, lambda c: f"sampler: {c.sampler}")
    lines += _rows(visible, lambda c: c.turns, lambda c: f"of {c.turns} turn{'s' * (c.turns > 1)}")
    lines += ["", "| view `culprit` alone | right turn first |", "| --- | --- |"]
    for rank in ("drift_rank", "mass_rank", "gradient_rank"):
        lines.append(f"| `{rank}` | {_counted(visible, attrgetter(rank))} |")
    wrong = [case for case in visible if not case.right_turn]
    lines += [
        "",
        (
            f"Of the {len(wrong)} wrong turns in the first row, {sum(case.stands_out for case in wrong)} were"
            " said to stand out. Of batches without a fault, one was in"
            f" {_counted(clean, lambda c: c.stands_out)}."
        ),
    ]
    return "\n".join(lines)


def _rows(cases: Sequence[Case], key: Callable[[Case], Any], name: Callable[[Case], str]) -> list[str]:
    """One row per value of `key`, in order."""
    groups: dict[Any, list[Case]] = {}
    for case in sorted(cases, key=key):
        groups.setdefault(key(case), []).append(case)
    return [_row(name(group[0]), group) for group in groups.values()]


def _row(name: str, cases: Sequence[Case]) -> str:
    cells = (
        _counted(cases, lambda c: c.right_turn),
        _counted(cases, lambda c: c.right_span),
        _counted(cases, lambda c: c.stands_out),
    )
    return f"| {name} | {' | '.join(cells)} |"


def write(cases: Sequence[Case], path: Path) -> None:
    """The cases as a small Parquet file, from which anybody can count again."""
    pd.DataFrame([asdict(case) for case in cases]).to_parquet(path, index=False)


def read(path: Path) -> list[Case]:
    """The cases of such a file. Raises InputError for a file that is none."""
    return [Case(**row) for row in stored(path, [f.name for f in fields(Case)], "planted faults")]


def main(files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return how often the turn and the span of planted faults are named, or of the shipped cases; write the
    cases.
    """
    from sorl.cli.tables import note

    if len(files) > 1:
        raise InputError("sorl bench attribution takes one --from")
    drawn = cases(plans(*PLANTED), lambda done, of: note(f"{done} of {of} batches"))
    found = read(files[0]) if files else list(drawn)
    if output is not None:
        write(found, output)
    return page(found)
