"""A knowledge base that is never stored: every fact is computed from the seed when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.agent.draws import draw

_FACT = 1


@dataclass(frozen=True)
class Knowledge:
    """Functional facts (entity, relation) -> entity over integers 0 .. entities - 1 and 0 .. relations - 1."""

    seed: int
    entities: int
    relations: int

    def target(self, entity: int, relation: int) -> int:
        """The entity that `relation` leads to from `entity`; never `entity` itself."""
        return (entity + 1 + draw(self.seed, _FACT, entity, relation) % (self.entities - 1)) % self.entities
