"""Transcripts: the text of the rollouts that a step trained on, as columns of table `transcript`.

Whole prompt groups are kept, so that rollouts of one prompt can be read side by side: as many as the settings
allow tokens, others at every step.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sorl.measures.evidence import Rollouts
from sorl.spec.spelling import Spelling

Decode = Callable[[list[int]], Sequence[str]]


class Parts(NamedTuple):
    """The text of a rollout in parts: neighbouring tokens of one writer and one turn."""

    texts: list[str]
    turns: list[int] | None  # in which the policy wrote the part, 0 of one that it only read; None: not known

    @property
    def starts(self) -> list[int]:
        """Characters before each part."""
        return np.cumsum([0, *map(len, self.texts)])[:-1].tolist()


def transcript_rows(
    step: int, rollouts: Rollouts, decode: Decode | None, most_tokens: int, also: Sequence[int] = ()
) -> dict[str, Any]:
    """Return columns of table `transcript`; none without token ids and their texts.

    `also` are trajectories that are kept whatever `most_tokens` allows.
    """
    if rollouts.tokens is None or decode is None or most_tokens == 0:
        return {}
    lengths = np.array([len(ids) for ids in rollouts.tokens])
    chosen = {*choose_rollouts(step, rollouts.group, lengths, most_tokens), *also}
    kept = [trajectory for trajectory in sorted(chosen) if lengths[trajectory]]
    if not kept:
        return {}
    parts = _parts_of(kept, rollouts.tokens, rollouts.token_turn or [None] * len(rollouts), decode)
    return {
        "trajectory": kept,
        "text": ["".join(one.texts) for one in parts],
        "part_start": [None if one.turns is None else one.starts for one in parts],
        "part_turn": [one.turns for one in parts],
    }


def _parts_of(
    kept: Sequence[int],
    tokens: Sequence[Sequence[int]],
    turns: Sequence[np.ndarray | None],
    decode: Decode,
) -> list[Parts]:
    """Return the text of each trajectory of `kept` in parts; each token is decoded once."""
    rows = [np.asarray(tokens[trajectory]) for trajectory in kept]
    used = np.unique(np.concatenate(rows)).tolist()
    word_of = dict(zip(used, decode(used), strict=True))
    spelling = Spelling.of(word_of.values())
    found = []
    for trajectory, ids in zip(kept, rows, strict=True):
        words = [word_of[token] for token in ids.tolist()]
        found.append(split_text(words, turns[trajectory], spelling))
    return found


def split_text(words: Sequence[str], turn: np.ndarray | None, spelling: Spelling) -> Parts:
    """Return the text of a rollout in parts; `turn` (T,) is that of each token, None if not known."""
    if turn is None:
        return Parts([spelling.text(words)], None)
    begins = [0, *(np.flatnonzero(np.diff(turn)) + 1).tolist()]
    ends = [*begins[1:], len(words)]
    texts = [spelling.text(words[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    if spelling is Spelling.WORDS:
        texts = [*texts[:1], *(f" {text}" for text in texts[1:])]
    return Parts(texts, [int(turn[begin]) for begin in begins])


def choose_rollouts(step: int, group: np.ndarray, lengths: np.ndarray, most_tokens: int) -> list[int]:
    """Return the trajectories whose text is kept: all of them where they have `most_tokens` or fewer.

    Else whole prompt groups, at least one, until they have that many; the next step begins with other groups.
    """
    if lengths.sum() <= most_tokens:
        return list(range(len(lengths)))
    groups = np.unique(group)
    fitting = max(1, int(most_tokens / lengths.sum() * len(groups)))
    kept: list[int] = []
    left = most_tokens
    for name in np.roll(groups, -step * fitting):
        members = np.flatnonzero(group == name)
        left -= int(lengths[members].sum())
        if left < 0 and kept:
            break
        kept += members.tolist()
    return kept
