"""The whole training step against plain loops over floats: every measured column, gradient and weight to
1e-9.

Random ragged batches go through what a run does with them: selection and advantages, the shuffled minibatches
of the loop, micro-batches, the optimizer step, and the recorder, whose files are read back.
`tests/learn/reference.py` does the same from the formulas. The policy is a table, so that it needs no
autograd there.
"""

import math
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch, turn_ids
from sorl.learn.loop import Trainer
from sorl.learn.pulse import Pulse
from sorl.learn.update import Learner
from sorl.measures import CATALOGUE
from sorl.measures.evidence import Evidence, Rollouts, StepEvidence
from sorl.objective import prepare
from sorl.recording.recorder import Recorder
from sorl.spec import LearnSettings, RunSettings
from tests.learn import reference
from tests.learn.reference import CRITICS, EVERYTHING, Rule, Sequence_

F64 = torch.float64
WORDS = 9  # of the vocabulary; 1 to 4 are the tags
TAGS = {"search": 1, "search_end": 2, "answer": 3, "answer_end": 4}
CLOSE = 1e-9
BUDGET = 20.0  # tokens that an episode may have
GSPO = (1 - 3e-4, 1 + 4e-4)
RULES = {
    "ppo": Rule("gae"),
    "turn-ppo": Rule("gae", level="turn"),
    "s-ppo": Rule("gae", stabilise="batch"),
    "st-ppo": Rule("gae", level="turn", stabilise="batch"),
    "grpo": Rule("grpo"),
    "so-grpo": Rule("grpo", level="turn", stabilise="sequence"),
    "so-ppo-note": Rule(
        "turn_gae", level="turn", arithmetic=True, unit_gate=True, aggregate="turn_mean", stabilise="kl"
    ),
    "ppo, discounted": Rule("gae", discounts=(0.9, 0.7)),
    "ppo, mean of turns": Rule("turn_mean", discounts=(0.9, 0.7)),
    "ppo, cnorm": Rule("gae", stabilise="cnorm"),
    "ppo, subtract": Rule("gae", stabilise="subtract"),
    "dr-grpo": Rule("mean", aggregate="constant", horizon=BUDGET),
    "dapo": Rule("grpo", bounds=(0.8, 1.28), select="unequal", overlong=(8.0, 4.0)),
    "loop": Rule("rloo", bounds=(1 / 1.1, 1.1), aggregate="seq_mean_token_mean", select="large", skip=20.0),
    "turn-ppo-mdp": Rule(
        "turn_gae", discounts=(0.99, 0.9), level="turn", unit_gate=True, aggregate="turn_mean_global"
    ),
    "starpo": Rule("bilevel"),
    "starpo, discounted": Rule("bilevel", discounts=(0.9, 0.8)),
    "starpo-s": Rule("bilevel", bounds=(0.8, 1.28), select="spread"),
    "reinforce": Rule("batch_mean", level="none", clip="none", bounds=EVERYTHING),
    "rloo": Rule("rloo", level="none", clip="none", bounds=EVERYTHING),
    "reinforce-pp": Rule("reinforce_pp"),
    "gspo": Rule("grpo", level="sequence", bounds=GSPO, aggregate="seq_mean_token_mean"),
    "gspo-token": Rule("grpo", level="sequence", shared=False, bounds=GSPO, aggregate="seq_mean_token_mean"),
    "seeupo": Rule(
        "turn_by_turn", level="sequence", bounds=GSPO, aggregate="seq_mean_token_mean", last_turn_first=True
    ),
    "dppo": Rule("grpo", clip="tv", bounds=EVERYTHING),
    "sspo": Rule("grpo", level="sentence", clip="band"),
    "gmpo": Rule("grpo", level="sequence", clip="log", bounds=(-0.4, 0.4), aggregate="seq_mean_token_mean"),
    "cispo": Rule("grpo", clip="weight"),
    "minirl": Rule("grpo", clip="mask", aggregate="seq_mean_token_sum", omega="free"),
    "vespo": Rule("grpo", level="sequence", clip="gamma", bounds=EVERYTHING),
    "sapo": Rule("grpo", clip="sigmoid", bounds=EVERYTHING, aggregate="seq_mean_token_mean"),
    "bapo": Rule("grpo", clip="bapo", bounds=(0.6, 1.2), dual=3.0),
    "grpo-guard": Rule("grpo", guard="center"),
    "grpo-guard-full": Rule("grpo", guard="full"),
    "llds": Rule("grpo", extra="lld"),
    "sapo-search": Rule("grpo", extra="positive"),
    "topr": Rule("mean", level="sequence", clip="topr", bounds=EVERYTHING, aggregate="seq_mean_token_sum"),
    "aspo": Rule("grpo", clip="aspo"),
    "m2po": Rule("grpo", clip="m2po", bounds=EVERYTHING),
    "trm": Rule("grpo", clip="trm", bounds=EVERYTHING),
    "opsm": Rule("grpo", clip="opsm", aggregate="seq_mean_token_mean"),
    "prime-rl": Rule("mean", clip="tv_gate", bounds=EVERYTHING, extra="square"),
    "simpletir": Rule("grpo", bounds=(0.8, 1.28), dual=3.0, select="void"),
    "vcpo": Rule(
        "grpo",
        level="none",
        clip="none",
        bounds=EVERYTHING,
        aggregate="seq_mean_token_mean",
        omega="sequence",
        scaled_rate=True,
    ),
    "otb": Rule("otb"),
    "gigpo": Rule("gigpo"),
    "sampo": Rule(
        "gigpo",
        level="sequence",
        shared=False,
        bounds=(1 - 3e-3, 1 + 4e-3),
        aggregate="seq_mean_token_mean",
        select="unequal",
    ),
    "mt-grpo": Rule("mt_grpo"),
    "mt-grpo-fixed": Rule("mt_grpo_fixed"),
    "igpo": Rule("igpo"),
    "a2tgpo": Rule("a2tgpo", level="turn", clip="gain"),
    "decoupled-ppo": Rule("grpo", omega="free"),
    "a-3po": Rule("grpo", omega="free", proximal="between"),
    "ppo-ewma": Rule("grpo", omega="free", proximal="average"),
    "tis": Rule("grpo", omega="tis"),
    "mis": Rule("grpo", omega="mis"),
    "icepop": Rule("grpo", omega="icepop"),
}

# Columns that are no function of the numbers of the batch: clocks, memory, hashes and what the sampler alone
# knows.
ELSEWHERE = {"written_at", "run_id", "questions_hash", "seconds_record"}


class Table(nn.Module):
    """Logits of the next token by the token before."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.logits[input_ids])


class Values(nn.Module):
    """A value by the token before; 0 where there is none."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, tokens: Tensor, where: Tensor | None = None) -> Tensor:
        return nn.functional.pad(self.values[tokens[:, :-1]], (1, 0))


class Loop(Trainer):
    """The loop's own epochs and minibatches without what samples and evaluates."""

    def __init__(self, learner: Learner, settings: RunSettings, step: int) -> None:
        self.learner = learner
        self.algorithm = learner.algorithm
        self.settings = settings
        self.step = step
        self.clock = defaultdict(float)
        self.pulse = Pulse()


def drawn(draw: random.Random, theta: list[list[float]]) -> tuple[list[Sequence_], bool]:
    """Trajectories of a prompt, turns and observations between them, in groups of one to four.

    In some of them a log-ratio is clamped; a full step along such a gradient would leave no digit to compare.
    """
    wild = False
    scale = draw.choice([0.05, 0.4, 1.5])
    batch: list[Sequence_] = []
    for group in range(draw.randint(2, 4)):
        for member in range(draw.randint(1, 4)):
            mask = [False] * draw.randint(1, 2)
            for _ in range(draw.randint(1, 3)):
                mask += [True] * draw.randint(1, 4) + [False] * draw.randint(0, 2)
            if member > 1 and draw.random() < 0.1:
                mask = [False] * len(mask)
            tokens = [draw.randrange(WORDS) for _ in mask]
            old = []
            for t, m in enumerate(mask):
                row = theta[tokens[t - 1]] if t else theta[0]
                now = row[tokens[t]] - math.log(sum(math.exp(x) for x in row))
                far = m and draw.random() < 0.003
                wild |= far
                old.append(now + (draw.choice([-26.0, 26.0]) if far else draw.gauss(0, scale)) if m else 0.0)
            noise = [draw.gauss(0, 0.5) for _ in mask]
            batch.append(
                Sequence_(
                    index=len(batch),
                    group=group,
                    score=draw.choice([0.0, 0.5, 1.0]),
                    tokens=tokens,
                    mask=mask,
                    sentence=sorted(draw.randint(0, 2) for _ in mask),
                    old=old,
                    behaviour=[x + e * m for x, e, m in zip(old, noise, mask, strict=True)],
                    reference=[x + draw.gauss(0, 0.3) * m for x, m in zip(old, mask, strict=True)],
                    values=[draw.gauss(0, 0.5) for _ in mask],
                    # of the first row 2: with all at most 1, A-3PO's old log-probs are the sampler's, and
                    # the columns of the gap take the present ones for the trainer's
                    staleness=draw.randint(0, 4) if batch else 2,
                    squares=[draw.random() + math.exp(x) ** 2 for x in old],
                    gains=[],
                    process=[],
                    void=[],
                )
            )
            batch[-1].process = [draw.choice([0.0, 0.5, 1.0]) for _ in batch[-1].turns]
            batch[-1].void = [draw.random() < 0.15 for _ in batch[-1].turns]
    return batch, wild


def tensors(batch: list[Sequence_], critic: bool) -> Batch:
    width = max(len(s.tokens) for s in batch) + 1

    def padded(name: str, fill: Any, dtype: torch.dtype) -> Tensor:
        rows = [[*getattr(s, name), *[fill] * (width - len(s.tokens))] for s in batch]
        return torch.tensor(rows, dtype=dtype)

    mask = padded("mask", False, torch.bool)
    length = torch.tensor([len(s.tokens) for s in batch])
    return Batch(
        tokens=padded("tokens", 0, torch.int64),
        mask=mask,
        length=length,
        response=(mask.cumsum(1) > 0) & (torch.arange(width) < length[:, None]),
        group=torch.tensor([s.group for s in batch]),
        trajectory=torch.arange(len(batch)),
        score=torch.tensor([s.score for s in batch], dtype=F64),
        log_prob_behaviour=padded("behaviour", 0.0, F64),
        log_prob_old=padded("old", 0.0, F64),
        log_prob_ref=padded("reference", 0.0, F64),
        values=padded("values", 0.0, F64) if critic else None,
        sentence=padded("sentence", 0, torch.int64) * mask,
        staleness=torch.tensor([s.staleness for s in batch]),
        squared_probs=padded("squares", 0.0, F64),
        turn_reward=of_turns([s.process for s in batch], mask),
        void=of_turns([s.void for s in batch], mask) > 0,
    )


def of_turns(values: list[list[Any]], mask: Tensor) -> Tensor:
    """What is said of each turn, at its tokens; 0 off the mask."""
    rows = [torch.tensor([0.0, *row], dtype=F64) for row in values]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True).gather(1, turn_ids(mask))


def episodes(draw: random.Random, batch: list[Sequence_]) -> list[Any]:
    """What a sampler would say of the trajectories."""
    found = []
    for s in batch:
        n = len(s.turns)
        answered = draw.random() < 0.6
        status = [draw.choice([None, "found", "empty", "failed"]) for _ in range(n)]
        found.append(
            SimpleNamespace(
                group=s.group,
                tokens=s.tokens,
                written=list(s.mask),
                prompt_length=1,
                question=f"q{s.group}",
                gold="g",
                answer="a" if answered else None,
                reward=s.score,
                success=s.score == 1.0,
                ended="answer" if answered else "max_turns",
                turns=n,
                searches=draw.randint(0, n),
                valid_turns=draw.randint(0, n),
                turn_status=draw.choices(["search", "answer", "invalid"], k=n),
                retrieval_status=status,
                retrieval_seconds=[None if x is None else draw.random() for x in status],
            )
        )
    return found


def slots(name: str, rule: Rule) -> dict[str, Any]:
    gamma, lam = rule.discounts
    stabilise = {
        "": {},
        "kl": {"weight": rule.weight},
        "batch": {"tau": rule.tau},
        "sequence": {"tau": rule.tau},
    }
    told = {
        "advantage": {"kind": rule.advantage, "gamma": gamma, "lam": lam} if "," in name else {},
        "kl": {"kind": rule.kl, "beta": rule.beta} if rule.kl else {},
        "stabilise": stabilise.get(rule.stabilise, {"kind": rule.stabilise}),
        "shaping": dict(zip(("limit", "margin"), rule.overlong or (), strict=False)),
        "early_stop": {"limit": rule.skip} if rule.skip else {},
    }
    return {slot: changes for slot, changes in told.items() if changes}


def of_rollouts(step: int, batch: list[Sequence_], made: list[Any]) -> dict[str, float | None]:
    """The columns of table step that speak of the rollouts."""
    mean = reference.mean
    share = reference.ratio_of
    groups = [
        g for k in {e.group for e in made} if len(g := [i for i, e in enumerate(made) if e.group == k]) > 1
    ]
    rewards = [[made[i].reward for i in g] for g in groups]
    written = [[[s.tokens[t] for t in turn] for turn in s.turns] for s in batch]
    n_turns = sum(e.turns for e in made)
    asked = [x for e in made for x in e.retrieval_status if x is not None]
    waited = [x for e in made for x in e.retrieval_seconds if x is not None]
    policy = [len(s.written) for s in batch]
    seen = sum(len(s.tokens) - 1 for s in batch)
    repeats = [x for i in range(len(batch)) if (x := repetition(written[i])) is not None]
    return {
        "success": mean([e.success for e in made]),
        "reward": mean([e.reward for e in made]),
        "reward_std": reference.spread([e.reward for e in made]),
        "group_reward_std": mean([math.sqrt(reference.variance(r) or 0.0) for r in rewards]),
        "group_reward_variance": mean([reference.variance(r) or 0.0 for r in rewards]),
        "signal_group_frac": signal_share([reference.variance(r) or 0.0 for r in rewards]),
        "zero_advantage_frac": mean([max(r) == min(r) for r in rewards]),
        "solved_group_frac": mean([all(made[i].success for i in g) for g in groups]),
        "failed_group_frac": mean([not any(made[i].success for i in g) for g in groups]),
        "valid_action_frac": share(sum(e.valid_turns for e in made), n_turns),
        "answered_frac": mean([e.answer is not None for e in made]),
        "truncated_frac": mean([e.ended != "answer" for e in made]),
        "turns": n_turns / len(made),
        "searches": mean([e.searches for e in made]),
        "response_tokens": mean(policy),
        "retrieval_empty_frac": share(asked.count("empty"), len(asked)),
        "retrieval_failed_frac": share(asked.count("failed"), len(asked)),
        "observation_frac": share(seen - sum(policy), seen),
        "repetition_frac": mean(repeats),
        "duplicate_turn_frac": share(sum(map(duplicates, written)), sum(map(len, written))),
        "episodes_sampled": len(made),
        "staleness": 2,
        "seconds_rollout": 3.0,
        "seconds_update": 0.5,
        "seconds_retrieval": sum(waited) if waited else None,
        "memory_peak": 1000 + step,
        "batch_hash": step,
        "token_mismatches": 0,
        "sync_error": 0.25,
        "heldout_success": 0.5,
        "heldout_episodes": 10,
        "distinct_rollout_frac": mean([len({str(written[i]) for i in g}) / len(g) for g in groups]),
        "prompt_retrieval_frac": retrieved(
            [[[x for turn in written[i] for x in turn] for i in g] for g in groups]
        ),
    }


def signal_share(variances: list[float]) -> float | None:
    """Smallest share of the groups that holds 90 % of all variance."""
    whole = math.fsum(variances)
    if not whole:
        return None
    largest = sorted(variances, reverse=True)
    needed = next(n for n in range(1, len(largest) + 1) if math.fsum(largest[:n]) >= 0.9 * whole - 1e-12)
    return needed / len(variances)


def repetition(turns: list[list[int]]) -> float | None:
    words = [x for turn in turns for x in turn]
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def duplicates(turns: list[list[int]]) -> int:
    return sum(turn in turns[:i] for i, turn in enumerate(turns))


def retrieved(groups: list[list[list[int]]]) -> float | None:
    """Share of rollouts that are nearest, by the cosine of their counts, to the others of their
    own prompt.
    """
    if len(groups) < 2:
        return None
    hits = []
    for own, group in enumerate(groups):
        for i, words in enumerate(group):
            likeness = []
            for j, other in enumerate(groups):
                pool = [x for k, w in enumerate(other) if (j, k) != (own, i) for x in w]
                a, b = ([xs.count(v) for v in range(WORDS)] for xs in (words, pool))
                length = math.hypot(*a) * math.hypot(*b)
                likeness.append(sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0)
            best = [j for j, x in enumerate(likeness) if x >= max(likeness) - 1e-9]
            hits.append((own in best) / len(best))
    return sum(hits) / len(hits)


def agree(table: str, where: Any, row: dict[str, Any], expected: dict[str, Any], names: set[str]) -> None:
    """Every measured column of the row is the expected one, NULL where nothing is expected."""
    for name in sorted(names - ELSEWHERE):
        told = row[name]
        own = expected.get(name)
        if name == "noise_scale":  # one over what may be 0 but for rounding
            told, own = (1 / x if x else 0.0 for x in (told, own))
        if name == "clip_bias_ratio" and not expected.get("clip_bias_norm"):
            # the square of a gradient of 1e-170 may be 0 or not
            told = told or 0.0
            own = own or 0.0
        if told is None or own is None or isinstance(told, str):
            assert told == own, f"{table}.{name} at {where}: {told} instead of {own}"
        else:
            # what it is a difference of
            size = abs(expected["noise_trace"]) if name == "noise_signal" else abs(own)
            assert abs(told - own) <= CLOSE * max(1.0, size), (
                f"{table}.{name} at {where}: {told} instead of {own}"
            )


def check(name: str, batches: int, folder: Path) -> None:
    """Train `batches` random batches one step each, and compare all that was written and the weights after
    it.
    """
    run = RunSettings.model_validate({"record": {"tokens": 0, "batches": {"mb": 0}}})
    recorder = Recorder(folder, "run", run)
    keys = {
        "step": ("step",),
        "minibatch": ("step", "update"),
        "trajectory": ("step", "trajectory"),
        "turn": ("step", "epoch", "trajectory", "turn_index"),
        "turn_step": ("step", "turn_index"),
    }
    expected: dict[str, dict[Any, dict[str, Any]]] = {table: {} for table in keys}
    fired = clipped = skipped = 0
    for step in range(batches):
        draw = random.Random(f"{name} {step}")
        rule = replace(
            RULES[name],
            kl="" if RULES[name].extra else draw.choice(["", "", "loss", "reward"]),
            tau=draw.choice([1.0, 3.0]) if RULES[name].stabilise in ("batch", "sequence") else 3.0,
            weight=draw.choice([0.3, 2.0]),
            skip=RULES[name].skip and draw.choice([0.5, 20.0]),
        )
        theta = [[draw.gauss(0, 1) for _ in range(WORDS)] for _ in range(WORDS)]
        phi = [draw.gauss(0, 0.5) for _ in range(WORDS)]
        sampled, wild = drawn(draw, theta)
        made = episodes(draw, sampled)
        far = 20 if rule.proximal == "average" else 1  # else no ratio to it reaches the clip
        lr = 1e-9 if wild else far * draw.choice([0.05, 0.5])
        longest = draw.choice([None, 0.05])
        learn = LearnSettings.model_validate(
            {
                "policy": {"kind": "sgd", "lr": lr, "max_grad_norm": longest},
                "critic": {"kind": "sgd", "lr": 0.1},
                "micro_batch": draw.choice([None, None, 2, 3]),
                "entropy_coef": draw.choice([0.0, 0.02]),
                "value_clip": draw.choice([None, 0.5]),
                "clip_bias_every": draw.choice([1, 2]),
                "probe_every": draw.choice([1, 2]),
                "epochs": draw.randint(1, 2),
                "minibatches": draw.randint(1, 3),
            }
        )
        told = of_rollouts(step, sampled, made)

        # The step as a run takes it.
        algorithm = resolve(name.split(",")[0], slots(name, rule)).within(BUDGET)
        policy: Any = Table(torch.tensor(theta, dtype=F64))
        critic: Any = Values(torch.tensor(phi, dtype=F64)) if rule.advantage in CRITICS else None
        learner = Learner(algorithm, learn, policy, critic)
        learner.probe.control = TAGS
        learner.spans = SimpleNamespace(of=lambda tokens, mask: tokens % 4)
        batch = prepare(algorithm, tensors(sampled, rule.advantage in CRITICS))
        done = Loop(learner, run, step)._optimise(batch, step - 2)
        seconds = {"rollout": 3.0, "update": 0.5, "evaluation": 0.1, "total": 3.6}
        recorder.step(
            step,
            StepEvidence(
                rollouts=Rollouts.of(made, step - 2),
                updates=Evidence.stack(done),
                seconds=seconds,
                tokens_trained=sum(int(u.mask.sum()) for u in done),
                heldout=(0.5, 10),
                sync_error=0.25,
                fresh=True,
                memory_peak=1000 + step,
                batch_hash=step,
                mismatches=[],
            ),
        )

        # The same by hand.
        reference.prepare(rule, sampled)
        trainer = reference.Trainer(rule, theta, phi, learn)
        taken = []
        parts = trainer.parts(sampled)
        turns: dict[int, list[Any]] = defaultdict(list)
        left: list[list[int]] = []  # the trajectories that the epochs of this part have yet to train
        for number, u in enumerate(done):
            assert not trainer.skipped, "a skipped step is the last one"
            if not any(left):
                present = {s.index: s for s in next(parts)}
                left = [list(present) for _ in range(learn.epochs)]
            epoch = int(u.epoch)
            rows = [i for i in u.trajectory[0].tolist() if i >= 0]
            assert not any(left[:epoch]), "one epoch after the other"
            for i in rows:
                left[epoch].remove(i)
            update = trainer.update([present[i] for i in rows])
            taken.append((epoch, update))
            row = reference.of_update(rule, update)
            expected["minibatch"][step, number] = row
            fired += (row["stabiliser_factor"] or 1.0) < 1.0
            clipped += sum(k.low or k.high for k in update.tokens)
            for turn in reference.turns(update.tokens):
                k = turn[0]
                at = made[k.s.index]
                extra = {
                    "status": at.turn_status[k.turn - 1],
                    "retrieval_seconds": at.retrieval_seconds[k.turn - 1],
                }
                state = at.retrieval_status[k.turn - 1]
                for word in ("empty", "failed"):
                    extra[f"retrieval_{word}_frac"] = None if state is None else float(state == word)
                row = reference.of_turn(rule, turn, update) | extra
                expected["turn"][step, epoch, k.s.index, k.turn] = row
                turns[k.turn].append((turn, row))
        skipped += trainer.skipped
        assert trainer.skipped or not any(left), "an epoch trains every trajectory once"
        assert trainer.skipped or next(parts, None) is None, "every turn is trained"
        all_turns = [row for one in turns.values() for _, row in one]
        for index, one in turns.items():
            expected["turn_step"][step, index] = reference.of_turn_step(rule, one, all_turns)
        told |= reference.of_step(rule, [update for _, update in taken])
        told["tokens_per_second"] = told["tokens_trained"] / 0.5
        told |= {"seconds_evaluation": 0.1, "seconds_total": 3.6}
        expected["step"][step] = told
        for s, e in zip(sampled, made, strict=True):
            words = [[x for x, m in zip(s.tokens, e.written, strict=True) if m]]
            stretches = [[s.tokens[t] for t in turn] for turn in replace(s, mask=e.written).turns]
            expected["trajectory"][step, s.index] = reference.of_trajectory(rule, s.index, taken) | {
                "reward": e.reward,
                "success": e.success,
                "n_turns": e.turns,
                "n_tokens": len(words[0]),
                "n_observation_tokens": len(s.tokens) - 1 - len(words[0]),
                "n_searches": e.searches,
                "valid_turn_frac": reference.ratio_of(e.valid_turns, e.turns),
                "repetition_frac": repetition(words),
                "duplicate_turn_frac": reference.ratio_of(duplicates(stretches), len(stretches)),
            }
        for own_table, table in ((trainer.theta, policy.logits), (trainer.phi, critic and critic.values)):
            if table is not None:
                assert np.allclose(own_table, table.detach(), rtol=CLOSE, atol=CLOSE)
    recorder.close()
    for table, rows in expected.items():
        found = {}
        for file in sorted((folder / "segments" / table).glob("*.parquet")):
            for row in pq.read_table(file).to_pylist():
                where = tuple(row[k] for k in keys[table])
                found[where if len(where) > 1 else where[0]] = row
        assert set(found) == set(rows), table
        names = {d.name for d in CATALOGUE if d.table == table}
        for where, row in found.items():
            agree(table, where, row, rows[where], names)
    assert fired > 0 or batches < 10 or RULES[name].stabilise not in ("batch", "sequence", "cnorm")
    assert skipped > 0 or batches < 10 or not RULES[name].skip
    assert clipped > 0 or batches < 10 or RULES[name].clip in NEVER_CLIPPED


NEVER_CLIPPED = ("none", "sigmoid", "gamma", "weight", "topr")
SIX = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo")


def test_every_algorithm_is_recomputed():
    assert {name.split(",")[0] for name in RULES} == set(ALGORITHMS)


@pytest.mark.parametrize("batches", [5, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RULES)
def test_a_training_step_is_what_plain_loops_make_of_the_formulas(name, batches, tmp_path):
    check(name, max(batches, 12 if name in SIX else 0), tmp_path)
