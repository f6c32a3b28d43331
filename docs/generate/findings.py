"""The tables of docs/findings.md, computed from the shipped results in `experiments/results/`.

Each function returns one short Markdown table; the long ones are on the pages of docs/results/.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sorl.spec import COLLAPSED, UNDECIDED
from sorl.spec.markdown import markdown_table
from studies import Share

if TYPE_CHECKING:
    from sorl.analysis.results import Results
    from studies.claims import Verdict
    from studies.evidence import Comparison

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "experiments" / "results"
SEPARATE = ("six_by_five", "controls")
REGIONS = {"SGD": "region_sgd", "AdamW": "region_adamw"}
# Columns of the forks: title, file, algorithm.
FORKS = (
    ("PPO, .15", "children", "ppo"),
    ("GRPO, .15", "children", "grpo"),
    ("PPO, .4", "steep", "ppo"),
)
ARMS = {
    "unchanged": "nothing",
    "on-policy": "fresh rollouts, used once",
    "fresh": "fresh rollouts, used four times",
    "one-epoch": "stale rollouts, used once",
    "turn-ratio": "ratios per turn",
    "normalise": "the normalisation",
    "turn-ratio-normalise": "both",
    "grad-clip": "gradient norm clipped",
    "dual-clip": "dual clip",
    "third-lr": "a third of the learning rate",
    "placebo-turns": "ratios per random stretch",
    "sequence-ratio": "one ratio per trajectory",
    "no-critic": "group advantages, no critic",
}
CLAIMS = {
    "a1": "(a1) token PPO falls off-policy, not on-policy",
    "a2": "(a2) token GRPO falls off-policy, not on-policy",
    "b": "(b) turn ratios alone help",
    "c": "(c) the normalisation alone helps",
    "d": "(d) both together are best",
    "e": "(e) clip fractions are lower with turn ratios",
    "f": "(f) the clipping bias grows before a collapse",
    "g1": "(g1) the critic's error grows before a collapse",
    "g2": "(g2) without a critic collapses are rarer",
}
NOT_ASKED = "-"
# Arm of the forks of PPO -> the arm of rise_and_fall with the same change; None where it was not trained.
WITH_ADAMW = {
    "unchanged": "ppo",
    "turn-ratio": "turn-ppo",
    "normalise": "s-ppo",
    "turn-ratio-normalise": "st-ppo",
    "placebo-turns": None,
    "grad-clip": "ppo, gradient norm .1",
    "on-policy": "ppo, on-policy, as many updates",
}


@cache
def shipped(name: str) -> Results:
    """Return the results of a shipped experiment."""
    from sorl.analysis.results import read

    return read(SHIPPED / f"{name}.parquet")


@cache
def born(name: str) -> pd.DataFrame:
    """Return the children of a shipped study of forks that were forked before their parent's fall."""
    found = pd.read_parquet(SHIPPED / "forks" / f"{name}.parquet")
    children = found[found["arm"].notna()]
    if name == "steep":  # eight of its parents could be forked only after they had begun to fall
        children = children[children["forked_at"].le(children["onset"])]
    return children.assign(down=children["down"].astype(bool))


def fell(arms: Sequence[str], columns: Sequence[tuple[str, str, str]] = FORKS) -> str:
    """Return how many children fell, of all, by what was changed in them."""
    rows = []
    for arm in arms:
        shares = [_share(file, algorithm, arm) for _, file, algorithm in columns]
        rows.append([ARMS[arm], *shares])
    return markdown_table(("changed", *(title for title, _, _ in columns)), rows)


def _share(file: str, algorithm: str, arm: str) -> str:
    children = born(file)
    mine = children[children["algorithm"].eq(algorithm) & children["arm"].eq(arm)]
    if mine.empty:
        return "not tried"
    return f"{mine['down'].sum()} of {len(mine)}"


def fell_after_one_change() -> str:
    """Return how many runs of token PPO fell after one change, of all: the table of README.md."""
    runs = shipped("rise_and_fall/counted").runs
    rows = []
    for arm, twin in WITH_ADAMW.items():
        mine = runs[runs["arm"] == twin]
        collapsed = f"{mine['outcome'].eq('collapsed').sum()} of {len(mine)}" if twin else "not tried"
        rows.append((ARMS[arm], _share("children", "ppo", arm), _share("steep", "ppo", arm), collapsed))
    return markdown_table(("changed in token PPO", "SGD", "SGD, larger steps", "AdamW, warm-up"), rows)


def claims() -> str:
    """Return the verdict on each claim of the paper, by how it was asked."""
    separate = _by_letter(_separate())
    regions = {title: _of_region(name) for title, name in REGIONS.items()}
    forked = {file: _by_forks(file) for file in ("children", "steep")}
    rows = []
    for letter, sentence in CLAIMS.items():
        cells = [separate[letter]]
        cells += [forked[file].get(letter, NOT_ASKED) for file in ("children", "steep")]
        cells += [regions[title].get(letter, NOT_ASKED) for title in REGIONS]
        rows.append((sentence, *map(_short, cells)))
    header = ("claim", "separate runs", "forks, .15", "forks, .4", "regions, SGD", "regions, AdamW")
    return markdown_table(header, rows)


@cache
def _separate() -> tuple[Verdict, ...]:
    from studies.claims import pooled, verdicts

    return tuple(verdicts(pooled([shipped(name) for name in SEPARATE])))


def _by_letter(found: Sequence[Verdict]) -> dict[str, str]:
    return {verdict.claim.letter: verdict.verdict for verdict in found}


def _by_forks(file: str) -> dict[str, str]:
    """Letter of a claim -> the verdict of all its contrasts together."""
    from studies.evidence import together
    from studies.forks import CLAIMS as CONTRASTS
    from studies.forks import judged

    verdicts: dict[str, list[str]] = {}
    for contrast, _, verdict in judged(born(file), CONTRASTS):
        verdicts.setdefault(contrast.letter, []).append(verdict)
    return {letter: together(mine) for letter, mine in verdicts.items()}


@cache
def _shifts(name: str, survival: str) -> tuple[Comparison, ...]:
    from sorl.analysis.region import from_runs, region_of
    from sorl.analysis.runs import KEPT
    from studies.claims import shifts

    found = shipped(name)
    file = region_of(found.toml)
    assert file is not None
    landscape = from_runs(found.runs.assign(started_at=None), file, name)
    if survival == KEPT:
        landscape = landscape.read_as(KEPT)
    return tuple(shifts(landscape, found.runs))


def _of_region(name: str) -> dict[str, str]:
    from sorl.analysis.runs import NOT_DEAD
    from studies.claims import area_verdicts

    return area_verdicts(_shifts(name, NOT_DEAD))


def _short(verdict: str) -> str:
    return verdict.removesuffix(" at this power")


def shifted(title: str) -> str:
    """Return by how much each cure moves the boundary of a region, by both readings of survival."""
    from sorl.analysis.runs import KEPT, NOT_DEAD

    rows = []
    name = REGIONS[title]
    for one, kept in zip(_shifts(name, NOT_DEAD), _shifts(name, KEPT), strict=True):
        if one.claim != "g2":
            rows.append((f"{one.more} over {one.less}", *_moved(one), *_moved(kept)))
    header = ("compared", "all that did not collapse", "verdict", "only learned and kept it", "verdict")
    return markdown_table(header, rows)


def _moved(one: Comparison) -> tuple[str, str]:
    from studies.claims import doublings

    return doublings(one), _short(one.verdict)


def drivers() -> str:
    """Return the tests of the paper's explanations on separate runs: clip fraction, clipping bias, critic."""
    from studies.claims import effect, named

    rows = []
    for verdict in _separate():
        if verdict.claim.letter in ("e", "f", "g1", "g2"):
            letter = f"({verdict.claim.letter})"
            rows += [(letter, named(one), effect(one), _short(one.verdict)) for one in verdict.rows]
    return markdown_table(("claim", "compared", "effect, 95 % interval", "verdict"), rows)


def collapsed(name: str, arms: Sequence[str]) -> str:
    """Return how many runs of each arm of a shipped experiment collapsed, with how many could be judged."""
    found = shipped(name).runs
    rows = [(arm, _collapses(found[found["arm"] == arm])) for arm in arms]
    return markdown_table(("arm", "collapsed"), rows)


def _collapses(runs: pd.DataFrame) -> Share:
    judged = runs["status"].eq("finished") & runs["outcome"].notna() & ~runs["outcome"].isin(UNDECIDED)
    dead = judged & runs["outcome"].isin(COLLAPSED)
    return Share(int(dead.sum()), int(judged.sum()))


def staleness() -> str:
    """Return each correction against token PPO on rollouts of four iterations ago."""
    from studies.staleness import count_methods, read_runs

    return count_methods(read_runs(SHIPPED / "staleness" / "counted.parquet"), 4)


def rise_and_fall() -> str:
    """Return how many runs rose and how many collapsed where the learning rate warms up."""
    from studies import stored
    from studies.rise_and_fall import EXPORTED, page

    file = SHIPPED / "rise_and_fall" / "counted.parquet"
    return page(pd.DataFrame(stored(file, EXPORTED, "exported results")))
