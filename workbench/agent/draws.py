"""Random numbers that are addressed, not consumed: a key's draw is the same in every process and in any
order.
"""

from __future__ import annotations

from sorl.tensors import torch

# What a random stream of the trainer is for: the first part of its key, so that no two streams share their
# numbers.
ROLLOUT = 1
ORDER = 2
EVALUATION = 3
PLACEBO = 4
FAULT = 5
_MASK = (1 << 64) - 1


def draw(*key: int) -> int:
    """Return a 64-bit integer that looks random and depends on the integers of `key` alone."""
    state = 0
    # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, as in xoshiro's seeding)
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*key: int) -> float:
    """Return a number in [0, 1) that depends on `key` alone."""
    return (draw(*key) >> 11) * 2.0**-53


def generator(*key: int) -> torch.Generator:
    """Return torch's random stream of `key`: the same in a fresh run, a resumed one and any other arm."""
    return torch.Generator().manual_seed(draw(*key) >> 1)


class Stream:
    """Successive draws under one key, for a procedure that needs several."""

    def __init__(self, *key: int) -> None:
        self._state = draw(*key)
        self._count = 0

    def uniform(self) -> float:
        """Return the next number in [0, 1)."""
        self._count += 1
        return uniform(self._state, self._count)

    def below(self, n: int) -> int:
        """Return the next integer in 0 .. n - 1."""
        return int(self.uniform() * n)

    def shuffled(self, n: int) -> list[int]:
        """Return a permutation of 0 .. n - 1 (Fisher-Yates)."""
        order = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order
