"""What forks say about the paper's claims: children of collapsed runs, arm by arm and by the step they were
forked at.

`python -m studies.forks RUNS FILE.parquet [EXPERIMENT]` adds parents and children in RUNS to a file;
docs/results/forks.md is rendered from it. A child differs from its parent in one change, so a claim is a
contrast of two arms among children of the same parents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import permutation_test

from sorl.analysis.forks import UNCHANGED, children, effects, permutation_p
from sorl.analysis.stats import holm, p_value
from sorl.spec.evidence import ALPHA
from sorl.spec.markdown import markdown_table
from sorl.store.reader import Reader
from studies import Share
from studies.evidence import COLLAPSE, MEASURES, MOST, NOT_SUPPORTED, SUPPORTED, UNDECIDED, seeds_for_fisher

LEADS = (12, 8, 4, 0)  # steps before the onset; a fork is at the newest checkpoint before
_PARENTS = """
    SELECT run_id, algorithm, seed, outcome, coalesce(collapse_step, onset_low) AS onset, seconds
    FROM run WHERE experiment = ? AND status = 'finished' ORDER BY arm, seed
"""
# Of the width of a 95 % interval: the effect that a two-sided test at .05 finds with 80 % power (1.96 + .84
# errors).
DETECTED = (1.96 + 0.84) / (2 * 1.96)
_PAIR = (("down", "draws"), ("plain_down", "plain_draws"))
_SECONDS = "SELECT run_id, seconds FROM run WHERE parent IS NOT NULL"


class Contrast(NamedTuple):
    """A claim as two arms: fewer children fall with the first than with the second."""

    letter: str
    claim: str
    algorithm: str
    arm: str
    reference: str = UNCHANGED


CLAIMS = (
    Contrast("a1", "Token PPO collapses off-policy, not on-policy", "ppo", "on-policy"),
    Contrast("a2", "Token GRPO collapses off-policy, not on-policy", "grpo", "on-policy"),
    Contrast("b", "Turn-level ratios alone help", "ppo", "turn-ratio"),
    Contrast("c", "The normalisation alone helps", "ppo", "normalise"),
    Contrast("d", "Both are better than turn ratios alone", "ppo", "turn-ratio-normalise", "turn-ratio"),
    Contrast("d", "Both are better than the normalisation alone", "ppo", "turn-ratio-normalise", "normalise"),
    Contrast("g2", "Without a critic the collapse is rarer", "ppo", "no-critic"),
)
# Not claims of the paper, but what its claims leave open.
OPEN = (
    Contrast("", "Turn-level ratios help GRPO", "grpo", "turn-ratio"),
    Contrast("", "The normalisation helps GRPO", "grpo", "normalise"),
    Contrast(
        "", "It is the turns: they help more than random stretches", "ppo", "turn-ratio", "placebo-turns"
    ),
    Contrast("", "The same with GRPO", "grpo", "turn-ratio", "placebo-turns"),
    Contrast("", "Turn ratios help more than a clipped gradient norm", "ppo", "turn-ratio", "grad-clip"),
    Contrast(
        "", "The normalisation helps more than a clipped gradient norm", "ppo", "normalise", "grad-clip"
    ),
)


def rows_of(reader: Reader, experiment: str) -> pd.DataFrame:
    """Return a row for each finished parent (`arm` is NULL) and child of the experiment."""
    parents = reader.query(_PARENTS, [experiment])
    born = children(reader, list(parents["run_id"])).merge(reader.query(_SECONDS), on="run_id", how="left")
    known = parents.drop(columns=["outcome", "seconds"]).rename(columns={"run_id": "parent"})
    both = [parents, born.merge(known, on="parent")]
    kept = [
        "run_id",
        "parent",
        "algorithm",
        "seed",
        "onset",
        "forked_at",
        "until",
        "arm",
        "draw",
        "outcome",
        "down",
        "success",
        "seconds",
    ]
    return pd.concat([frame.reindex(columns=kept).astype(object) for frame in both]).infer_objects()


def add(runs: Path, output: Path, experiment: str = "forks") -> pd.DataFrame:
    """Add the runs of a folder to a file of earlier ones."""
    frames = [pd.read_parquet(output)] if output.is_file() else []
    found = pd.concat([*frames, rows_of(Reader(runs), experiment)]).drop_duplicates("run_id", keep="last")
    found.to_parquet(output, index=False)
    return found


def lead(row: Any) -> int:
    """Return how long before the onset a child was forked: the largest of LEADS that it reaches."""
    return next((one for one in LEADS if row["onset"] - row["forked_at"] >= one), LEADS[-1])


def judged(
    found: pd.DataFrame, contrasts: Sequence[Contrast]
) -> Iterator[tuple[Contrast, dict[str, Any], str]]:
    """Yield each contrast with its effect and verdict, Holm's correction over all of them."""
    tested = []
    for one in contrasts:
        mine = found[found["algorithm"].eq(one.algorithm) & found["arm"].isin([one.arm, one.reference])]
        tested += [(one, row) for row in effects(mine, one.reference) if row["p"] is not None]
    ps = [row["p"] for _, row in tested]
    # docs/claims.md: a test says no only where it would say yes if no child of the arm fell.
    best = [permutation_p([(0, n, b, m) for _, n, b, m in row["strata"]]) for _, row in tested]
    decidable = [(holm([*ps[:i], p, *ps[i + 1 :]])[i] or 0.0) <= ALPHA for i, p in enumerate(best)]
    for i, ((one, row), p) in enumerate(zip(tested, holm(ps), strict=True)):
        verdict = UNDECIDED
        if p is not None and p <= ALPHA:
            verdict = SUPPORTED if row["saves"] > 0 else NOT_SUPPORTED
        elif row["high"] < MEASURES[COLLAPSE][1] and decidable[i]:
            verdict = NOT_SUPPORTED
        yield one, row | {"holm": p}, verdict


def page(found: pd.DataFrame) -> str:
    """Markdown: the parents, who fell by arm and fork point, the claims, and what separate runs would have
    needed.
    """
    parents = found[found["arm"].isna()]
    born = found[found["arm"].notna()].copy()
    born["down"], born["lead"] = born["down"].astype(bool), born.apply(lead, axis=1)
    fell = {
        str(name): Share(int(group.notna().sum()), len(group))
        for name, group in parents.groupby("algorithm")["onset"]
    }
    forked = born.groupby("algorithm")["parent"].nunique()
    said = [
        f"{name}: {share} of the runs fell, {forked.get(name, 0)} were forked" for name, share in fell.items()
    ]
    hours = found["seconds"].sum() / 3600
    lines = [f"{'; '.join(said)}. {len(born)} children; {hours:.1f} h of one core with the parents."]
    for name, group in born.groupby("algorithm"):
        lines += [
            "",
            f"Children of {name} that fell, of all, by where they were forked:",
            "",
            _by_lead(group),
        ]
    for title, contrasts in (("Claims of the paper", CLAIMS), ("What they leave open", OPEN)):
        text = f"{title}, as contrasts of two arms within parents and fork points:"
        lines += ["", text, "", _contrasts(born, contrasts, fell)]
    return "\n".join(lines)


def _by_lead(group: pd.DataFrame) -> str:
    leads = [one for one in LEADS if one in set(group["lead"])]
    header = (
        "arm",
        *(f"onset-{one}" if one else "onset" for one in leads),
        "all",
        "saves [95 %]",
        "Holm p",
        "success",
    )
    table = []
    for row in effects(group):
        mine = group[group["arm"] == row["arm"]]
        at = [mine.loc[mine["lead"] == one, "down"] for one in leads]
        saves, p = _effect(row)
        counts = [f"{one.sum()}/{len(one)}" for one in at]
        table.append(
            (row["arm"], *counts, f"{row['down']}/{row['draws']}", saves, p, f"{row['success']:.2f}")
        )
    return markdown_table(header, table)


def _contrasts(born: pd.DataFrame, contrasts: Sequence[Contrast], fell: Mapping[str, Share]) -> str:
    header = (
        "claim",
        "compared",
        "fell",
        "effect [95 %]",
        "Holm p",
        "parents, children",
        "parents better, p",
        "detects",
        "separate seeds",
        "verdict",
    )
    table = []
    for one, row, verdict in judged(born, contrasts):
        # Separate runs do not start from parents that fall: both shares are smaller by the share of parents
        # that do.
        shares = [fell[one.algorithm].value * row[down] / row[of] for down, of in _PAIR]
        needed = seeds_for_fisher(max(shares), min(shares), ALPHA) or f"more than {MOST}"
        counts = [f"{row[down]}/{row[of]}" for down, of in _PAIR]
        table.append(
            (
                f"({one.letter}) {one.claim}" if one.letter else one.claim,
                f"{one.algorithm}: {one.arm} against {one.reference}",
                " against ".join(counts),
                *_effect(row),
                f"{row['parents']}, {row['draws']} + {row['plain_draws']}",
                by_parents(born, one),
                f"{DETECTED * (row['high'] - row['low']):.2f}",
                f"{needed} an arm",
                verdict,
            )
        )
    return markdown_table(header, table)


def by_parents(born: pd.DataFrame, one: Contrast) -> str:
    """Return how many parents lose fewer children with the arm, and the exact p-value with parents as the
    units.
    """
    arms = born[born["algorithm"] == one.algorithm].groupby(["arm", "parent"])["down"].mean().unstack("arm")
    gained = (arms[one.reference] - arms[one.arm]).dropna().to_numpy()
    # Of 2^n flips: a 0 has no sign and changes no p-value; two keep the test defined where no parent differs.
    decisive = np.append(gained[gained != 0], [0.0, 0.0])
    signs = permutation_test((decisive,), np.mean, permutation_type="samples", n_resamples=np.inf)
    return f"{(gained > 0).sum()} of {len(gained)}, {p_value(signs.pvalue)}"


def _effect(row: Mapping[str, Any]) -> tuple[str, str]:
    if row["saves"] is None:
        return "", ""
    return f"{row['saves']:+z.2f} [{row['low']:+z.2f}, {row['high']:+z.2f}]", p_value(row["holm"])


if __name__ == "__main__":
    print(page(add(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])))
