"""Train every bug and every healthy configuration, audit and diagnose each, and count what was found.

`sorl bench audit` trains into `RUNS/unknown_bugs` what is not there yet; `--from FILE.parquet` only counts.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from sorl.agent.draws import draw
from sorl.diagnosis.proofs import AUDIT
from sorl.grid.cell import merge
from sorl.spec import COLLAPSED, InputError
from sorl.spec.evidence import Check
from sorl.spec.markdown import markdown_table
from sorl.store import batches
from studies import Share, stored
from studies.unknown_bugs.healthy import configurations, drawn

EXPERIMENT = "unknown_bugs"
SEEDS = {31: 0, 32: 2}  # seed: staleness of its runs
# iterations in which a bug begins
FIRST = 3
LAST = 6
SURE = 0.5  # confidence from which on a diagnosis that is wrong misleads
HEALTHY = "healthy"
_WHAT = "answers about unknown bugs"
# Seeds of healthy runs that nobody had seen: first after the audit was mended, second after two causes were
# as well, third after the audit led the diagnosis.
FRESH = {
    "healthy, fresh draw": range(28_000, 28_060),
    "healthy, second fresh draw": range(28_100, 28_160),
    "healthy, third fresh draw": range(28_300, 28_360),
}
# The same drawn once more and sampled by vLLM, which has an environment of its own.
VLLM = {
    "healthy, sampled with vLLM": range(28_200, 28_212),
    "healthy, sampled with vLLM, fresh draw": range(28_400, 28_412),
}
TINY: dict[str, Any] = {
    "iterations": 10,
    "world": {"entities": 8, "relations": 4, "hops": [1.0, 0.0, 0.0], "max_turns": 3},
    "policy": {"hidden": 32, "layers": 1, "heads": 2, "mlp": 32},
    "warmstart": {"steps": 100, "batch": 32},
    "learn": {"episodes": 16, "epochs": 2, "minibatches": 2, "policy": {"lr": 0.05}},
    "evaluation": {"every": 0, "episodes": 8},
    "record": {"checkpoint_every": 0},
}

_LOG_PROBS = ("old_log_probs", "log_probs", "gradient")
_ADVANTAGES = ("advantages", "returns")
_LOSS = ("loss", "gradient")
_STEP = ("gradient_clip", "weights", "log_probs")
_PAID = ("reward_noise", "reward_shifted")
# What a right answer says of the bugs in second.py; see EXPECTS. `trained_tokens` and `old_log_probs_fixed`
# are younger than the first count, and were added after it.
EXPECTS_SECOND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "top_p_hidden": (("sampling",), ("temperature_hidden",)),
    "sampler_averages_weights": (("behaviour_log_probs", "sampler_weights"), ("stale_weights",)),
    "retriever_cached_by_first_word": (("transcripts",), ("retriever_junk",)),
    "reward_over_turns": (("reward",), ("reward_noise",)),
    "only_last_turn_trained": (
        ("advantages", "loss_mask", "minibatches", "trained_tokens"),
        ("not_sampled",),
    ),
    "closing_tags_untrained": (("loss_mask",), ("not_sampled", "turn_shift")),
    "discount_of_a_default": (("advantages", "returns"), ()),
    "positive_advantages_only": (("loss", "minibatches"), ()),
    "old_log_probs_of_each_epoch": (("minibatches", "old_log_probs", "old_log_probs_fixed"), ()),
    "entropy_pushed_down": (("loss", "gradient"), ()),
    "two_steps_an_update": (("log_probs", "weights", "optimizer_steps", "optimizer_state"), ()),
    "last_minibatch_dropped": (("order", "optimizer_steps"), ()),
}
# What a right answer says, written down before anything was counted: identities that a bug breaks or whose
# neighbour it breaks, and causes of the diagnosis that are it or a neighbour.
EXPECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "repetition_penalty": (("sampling",), ("temperature_hidden",)),
    "one_seed_for_all": (("sampling", "independence"), ()),  # one identity when it was counted
    "log_probs_one_late": (
        ("behaviour_log_probs", "old_log_probs", "sampling"),
        ("turn_shift", "corrupt_log_prob"),
    ),
    "observation_cut": (("transcripts",), ("retriever_empty", "retriever_junk")),
    "scorer_reads_observations": (("reward",), ("reward_format", *_PAID)),
    "scorer_keeps_digits": (("reward",), ("reward_format", *_PAID)),
    "reward_buffer_kept": (("reward",), _PAID),
    "reward_cached": (("reward",), _PAID),
    "gold_of_the_next_question": (("reward", "transcripts"), _PAID),
    "positions_restart": (_LOG_PROBS, ()),
    "prompt_cut_in_the_trainer": (_LOG_PROBS, ()),
    "copies_that_stay": (("order",), ()),
    "values_stay_sorted": (("values",), ()),
    "values_one_off": (("values",), ()),
    "bootstrap_at_the_end": (_ADVANTAGES, ()),
    "returns_after_whitening": (("returns",), ()),
    "whitened_with_padding": (("advantages",), ()),
    "deviation_of_the_batch": (("advantages",), ("wrong_groups",)),
    "outcome_at_the_first_turn": (_ADVANTAGES, ()),
    "kl_paid_in_the_reward": (_ADVANTAGES, ()),
    "discounted_twice": (_ADVANTAGES, ()),
    "ratio_always_one": (_LOSS, ()),
    "clip_keeps_the_smaller": (_LOSS, ()),
    "mean_of_sequence_means": (_LOSS, ()),
    "mean_of_micro_means": (_LOSS, ()),
    "temperature_missing_in_the_update": (("log_probs", "gradient"), ("temperature",)),
    "kl_swapped": (_LOSS, ()),
    "gradients_pile_up": (("gradient", *_STEP), ()),
    "last_micro_batch_only": (("gradient", *_STEP), ()),
    "clipped_tensor_by_tensor": (_STEP, ("clipping_off",)),
    "clipped_before_unscaling": (("gradient", *_STEP), ("clipping_off",)),
    "betas_swapped": (("weights", "log_probs", "optimizer_state"), ()),
    "weight_decay_by_default": (("weights", "log_probs", "optimizer_state"), ()),
    "weights_in_bfloat16": (("weights", "log_probs"), ()),
    "scheduler_twice_as_fast": (("learning_rate",), ("learning_rate",)),
    "schedule_starts_again": (("learning_rate",), ("learning_rate",)),
    "reference_stays_sorted": (("reference_log_probs",), ("reference_wrong",)),
    "reference_without_temperature": (("reference_log_probs",), ("reference_wrong",)),
    "reference_is_the_policy": (("reference_log_probs",), ("reference_wrong",)),
    "older_weights_resumed": (("weights",), ()),
    "critic_not_resumed": (("weights", "values"), ()),
    "data_start_again": (("transcripts",), ()),
    "ranks_share_a_shard": (("transcripts",), ()),
    "held_out_questions_trained": (("transcripts",), ()),
    **EXPECTS_SECOND,
}


@dataclass(frozen=True)
class Case:
    """A run to train; nothing in its folder says which bug it has."""

    run_id: str
    kind: str
    algorithm: str
    seed: int
    at_step: int | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What was found in a run: the first violated identity of the audit, the first cause of the diagnosis."""

    run_id: str
    kind: str
    place: str
    announced: bool
    algorithm: str
    seed: int
    at_step: int | None
    outcome: str | None
    identity: str | None
    step: int | None
    says: str | None
    violated: str  # identities that are violated anywhere, in the audit's order
    missing: str  # what the expected identities that were checked in no step with the bug need
    cause: str | None
    confidence: float | None
    since: int | None
    headline: str | None = None  # the first finding of the diagnosis that knows the audit

    @property
    def verdict(self) -> str:
        """How the two together did: a proof stands before a pattern. Only for a run with a bug."""
        identities, causes = EXPECTS[self.kind]
        if self.identity is not None and self.step is not None and self.at_step is not None:
            # `weights` of a step are about the weights that the next one begins with.
            after = self.step + (self.identity == "weights") >= self.at_step
            right = self.identity in identities and after
            named = self.headline in (None, f"{AUDIT}{self.identity}", *causes)
            if right and not named:
                return "neighbour"  # the proof is right, and a cause was put before it
            return "right" if right else "wrong"
        return self.without_audit

    @property
    def without_audit(self) -> str:
        """How the diagnosis did by itself."""
        causes = EXPECTS[self.kind][1]
        if self.cause is not None and self.cause in causes:
            return "right"
        if self.confidence is not None and self.confidence >= SURE:
            return "wrong"
        return "missing" if self.missing else "nothing"


def cases() -> list[Case]:
    """Every bug with every algorithm that it concerns and two seeds; then healthy configurations, known and
    drawn.
    """
    from studies.unknown_bugs.kinds import KL
    from studies.unknown_bugs.second import BUGS

    found: list[Case] = []
    for number, bug in enumerate(BUGS.values()):
        for algorithm in bug.algorithms:
            for seed, staleness in SEEDS.items():
                settings = merge(
                    TINY, {"algorithm": algorithm, "seed": seed, "learn": {"staleness": staleness}}
                )
                if algorithm == "grpo":
                    settings = merge(settings, {"learn": {"group_size": 4}})
                settings = merge(settings, dict(bug.settings))
                if bug.kl:
                    settings = merge(settings, {"slots": {"kl": KL[algorithm]}})
                at_step = FIRST + draw(seed, number, len(algorithm)) % (LAST + 1 - FIRST)
                found.append(Case(f"u-{len(found):03}", bug.name, algorithm, seed, at_step, settings))
    healthy = [(HEALTHY, one) for one in configurations()]
    healthy += [(kind, drawn(seed)) for kind, seeds in FRESH.items() for seed in seeds]
    if find_spec("vllm"):
        # on a CPU its heads are 32 wide or more
        sampled = {"engine": {"kind": "vllm"}, "policy": {"heads": 1}}
        healthy += [(kind, merge(drawn(seed), sampled)) for kind, seeds in VLLM.items() for seed in seeds]
    for kind, changes in healthy:
        settings = merge(TINY, changes)
        found.append(
            Case(f"u-{len(found):03}", kind, settings["algorithm"], settings["seed"], None, settings)
        )
    return found


def train(case: Case, runs: Path) -> None:
    """Train a case below `runs`, unless it is there. Raises RuntimeError for a run that broke."""
    from sorl.learn.run import run
    from studies.unknown_bugs.kinds import injected
    from studies.unknown_bugs.second import BUGS

    folder = runs / EXPERIMENT / case.run_id
    if (folder / "trained").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(tomli_w.dumps(case.settings))
    identity = {"run_id": case.run_id, "experiment": EXPERIMENT, "config_hash": case.run_id}
    named = {"algorithm": case.algorithm, "arm": case.algorithm, "seed": case.seed}
    (folder / "run.json").write_text(json.dumps(identity | named))
    bug = nullcontext() if case.at_step is None else injected(BUGS[case.kind], case.at_step, folder)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with bug:
            if run(folder, runs / ".cache", io.StringIO()):
                raise RuntimeError(f"run '{case.run_id}' ({case.kind}) broke")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (folder / "trained").touch()


def answers(runs: Path, asked: Sequence[Case]) -> Iterator[Answer]:
    """Audit and diagnose the trained cases."""
    from sorl.audit import IDENTITIES
    from sorl.cli.shared import current
    from sorl.diagnosis.diagnose import diagnose
    from sorl.diagnosis.log import of_run
    from sorl.diagnosis.rank import in_order
    from studies.unknown_bugs.second import BUGS

    reader = current(runs)
    order = list(IDENTITIES)
    for case in asked:
        folder = runs / EXPERIMENT / case.run_id
        checks = _audited(folder)
        violated = [c for c in checks if not c.missing and c.violated]
        log = of_run(reader, case.run_id, runs)
        named = next(iter(diagnose(log).findings), None)
        headline = next(iter(in_order(diagnose(log, checks=checks))), None)
        first = next(iter(violated), None)
        bug = BUGS.get(case.kind)
        outcome = reader.rows("SELECT outcome FROM run WHERE run_id = ?", [case.run_id]).rows[0][0]
        yield Answer(
            run_id=case.run_id,
            kind=case.kind,
            place=bug.place if bug else HEALTHY,
            announced=bool(bug and bug.announced),
            algorithm=case.algorithm,
            seed=case.seed,
            at_step=case.at_step,
            outcome=outcome,
            identity=first.identity if first else None,
            step=first.step if first else None,
            says=first.says if first else None,
            violated=", ".join(sorted({c.identity for c in violated}, key=order.index)),
            missing=_lacking(case, checks),
            cause=named.cause.name if named else None,
            confidence=named.clue.confidence if named else None,
            since=named.clue.step if named else None,
            headline=headline.cause.name if headline else None,
        )


def _audited(folder: Path) -> list[Check]:
    """Return the checks of all stored steps, rows and witnesses of a run, by step and the audit's order."""
    from sorl.audit import IDENTITIES, audit, table_checks, witness_checks, witness_tables

    order = list(IDENTITIES)
    checks = [*audit(folder, batches.steps(folder)), *table_checks(folder)]
    checks += witness_checks(witness_tables(folder))
    return sorted(checks, key=lambda check: (check.step, order.index(check.identity)))


def _lacking(case: Case, checks: Sequence[Check]) -> str:
    """Return what the expected identities need that were checked in no step with the bug."""
    if case.at_step is None:
        return ""
    wanted = EXPECTS[case.kind][0]
    since = [check for check in checks if check.step >= case.at_step and check.identity in wanted]
    checked = {check.identity for check in since if not check.missing}
    lacking = {check.identity: check.missing for check in since if check.identity not in checked}
    return " | ".join(f"{name}: {why}" for name, why in lacking.items())


def write(found: Sequence[Answer], path: Path) -> None:
    """The answers as Parquet, from which the page is counted again without training."""
    pd.DataFrame([asdict(answer) for answer in found]).to_parquet(path, index=False)


def read(path: Path) -> list[Answer]:
    """The answers of such a file. Raises InputError for a file that is none."""
    names = [f.name for f in fields(Answer)]
    try:
        rows = stored(path, names, _WHAT)
    except InputError:
        rows = stored(path, [name for name in names if name != "headline"], _WHAT)  # of earlier counts
    whole = ("seed", "at_step", "step", "since")
    return [Answer(**row | {k: None if row[k] is None else int(row[k]) for k in whole}) for row in rows]


VERDICTS = ("right", "neighbour", "wrong", "missing", "nothing")
HEADER = (
    "runs with a bug",
    "proof or right cause",
    "proof behind a neighbour",
    "wrong and sure",
    "input missing, said",
    "nothing",
)


def page(found: Sequence[Answer]) -> str:
    """Markdown: the rates, by what was foretold and by place; each kind; what healthy runs were
    accused of.
    """
    faulty = [a for a in found if a.kind in EXPECTS]
    parts = [("all", faulty), ("kind not announced", [a for a in faulty if not a.announced])]
    parts += [("kind announced", [a for a in faulty if a.announced])]
    parts += [("the second twelve", [a for a in faulty if a.kind in EXPECTS_SECOND])]
    parts += [(name, [a for a in faulty if a.algorithm == name]) for name in ("ppo", "grpo")]
    parts += [
        (place, [a for a in faulty if a.place == place]) for place in dict.fromkeys(a.place for a in faulty)
    ]
    lines = [markdown_table(HEADER, [(name, *_shares(part)) for name, part in parts if part]), ""]
    right, wrong = (Share(sum(a.without_audit == v for a in faulty), len(faulty)) for v in ("right", "wrong"))
    lines += [f"The diagnosis by itself, without the audit: right {right}, wrong and sure {wrong}.", ""]
    for kind in (HEALTHY, *FRESH, *VLLM):
        whole = [a for a in found if a.kind == kind]
        lines += [_healthy(kind, whole), ""] if whole else []
    kinds = dict.fromkeys(a.kind for a in faulty)
    rows = [_kind(kind, [a for a in faulty if a.kind == kind]) for kind in kinds]
    return "\n".join(
        [*lines, markdown_table(("bug", "runs", *VERDICTS, "first violated", "diagnosis first"), rows)]
    )


def _healthy(kind: str, whole: Sequence[Answer]) -> str:
    """Return what healthy runs of a kind are accused of; those that collapsed are left out."""
    healthy = [a for a in whole if a.outcome not in COLLAPSED]
    broken = sum(bool(a.violated) for a in healthy)
    named = sum(bool(a.cause) for a in healthy)
    fallen = len(whole) - len(healthy)
    left_out = f" Left out: {fallen} that collapsed." if fallen else ""
    return (
        f"Runs that are {kind}: with a violated identity {Share(broken, len(healthy))}, with"
        f" a finding of the diagnosis {Share(named, len(healthy))}.{left_out}"
    )


def _shares(part: Sequence[Answer]) -> list[Share]:
    return [Share(sum(a.verdict == verdict for a in part), len(part)) for verdict in VERDICTS]


def _kind(kind: str, part: Sequence[Answer]) -> tuple[object, ...]:
    counts = [sum(a.verdict == verdict for a in part) or "" for verdict in VERDICTS]
    said = (
        ", ".join(dict.fromkeys(str(x) for x in values if x))
        for values in ([a.identity for a in part], [a.cause for a in part])
    )
    return f"`{kind}`", len(part), *counts, *said


def main(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return the page of the answers in files, or of all cases trained below `runs`; write the answers to
    `output`.
    """
    found = [answer for file in files for answer in read(file)]
    if not files:
        asked = cases()
        for case in asked:
            train(case, runs)
        found = list(answers(runs, asked))
    if not found:
        raise InputError(f"no answers in {', '.join(map(str, files))}")
    if output is not None:
        write(found, output)
    return page(found)
