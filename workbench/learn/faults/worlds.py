"""Bugs of what the agent acts in: a retriever that is empty, slow or out of step, and budgets that are cut."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from workbench.agent.worlds import Question, Retrieved, World
from workbench.learn.faults.fault import Fault

Found = str | Retrieved | None


class Through:
    """A world that does everything as `inner` does."""

    def __init__(self, inner: World) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Retriever(Through):
    """A world whose searches go through `change`, all or those of one turn, and each with a probability."""

    def __init__(self, inner: World, fault: _RetrieverFault, step: int) -> None:
        super().__init__(inner)
        self._fault, self._stream = fault, fault.stream(step)

    def search(self, question: Question, query: str, turn: int) -> Found:
        """What the broken retriever returns; a query that the world cannot read stays unread."""
        found = self._inner.search(question, query, turn)
        if found is None:
            return None
        wanted = self._fault.settings.turn
        hit = float(torch.rand(1, generator=self._stream)) < self._fault.share
        return self._fault.change(found, hit and wanted in (None, turn))


@dataclass
class _RetrieverFault(Fault):
    @property
    def share(self) -> float:
        """Probability that a search is concerned."""
        return self.strength

    def world(self, world: World, step: int) -> World:
        """The world with the broken retriever."""
        return _Retriever(world, self, step)

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """What comes back for a search; `hit` says whether the fault concerns it."""
        raise NotImplementedError


@dataclass
class RetrieverEmpty(_RetrieverFault):
    """Finds nothing."""

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """Nothing."""
        if not hit:
            return found
        return Retrieved("", "empty", found.seconds) if isinstance(found, Retrieved) else ""


@dataclass
class RetrieverSlow(_RetrieverFault):
    """Answers `strength` seconds late."""

    @property
    def share(self) -> float:
        """Every search."""
        return 1.0

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """What was found, later."""
        if not hit:
            return found
        time.sleep(self.strength)
        return found._replace(seconds=found.seconds + self.strength) if isinstance(found, Retrieved) else found


@dataclass
class RetrieverJunk(_RetrieverFault):
    """Returns what the last search for something else should have got."""

    _last: str | None = None
    _other: str | None = None  # the last passages that are not `_last`

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """The passages of another query; the first query gets its own."""
        own = found.text if isinstance(found, Retrieved) else found
        if own != self._last:
            self._last, self._other = own, self._last
        text = own if self._other is None or not hit else self._other
        return found._replace(text=text) if isinstance(found, Retrieved) else text


@dataclass
class Truncated(Fault):
    """Ends episodes after `strength` turns."""

    def world(self, world: World, step: int) -> World:
        """The world with fewer turns."""
        cut: Any = Through(world)
        cut.max_turns = min(world.max_turns, int(self.strength))
        return cut


@dataclass
class TurnCut(Fault):
    """Ends turns after `strength` tokens."""

    def world(self, world: World, step: int) -> World:
        """The world with shorter turns."""
        cut: Any = Through(world)
        cut.max_turn_tokens = min(world.max_turn_tokens, int(self.strength))
        return cut
