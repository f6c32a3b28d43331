"""From settings to a world, and what worlds for the embedded policy ship with: a tokenizer and a scripted player."""

from __future__ import annotations

from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from workbench.agent.episode import Episode
from workbench.agent.worlds import World
from workbench.agent.worlds.facts import Facts
from workbench.spec import InputError, WorldSettings


@lru_cache(maxsize=4)
def build(settings: WorldSettings) -> World:
    """Return the world that `settings` describe. Raises InputError for data, a corpus or a retriever that is not there.

    Equal settings give the same world again, with its data and its index.
    """
    if settings.kind == "atlas":
        from workbench.agent.worlds.atlas import Atlas

        return Atlas(settings)
    if settings.kind == "dataset":
        from workbench.agent.worlds.dataset import Dataset

        return Dataset(settings)
    return Facts(settings)


def tokenizer_of(settings: WorldSettings) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the world's own vocabulary. Raises InputError for a world that has none."""
    if settings.kind == "atlas":
        from workbench.agent.worlds.atlas import Atlas

        return Atlas(settings).tokenizer()
    _refuse_dataset(settings)
    from workbench.agent.tokenizer import build_tokenizer

    return build_tokenizer()


def demonstrations_of(settings: WorldSettings, n: int, noise: float, seed: int) -> list[Episode]:
    """Return the first `n` scripted episodes of the stream `seed`; the players' modules say what `noise` does."""
    if settings.kind == "atlas":
        from workbench.agent.demonstrations import travels
        from workbench.agent.worlds.atlas import Atlas

        return travels(Atlas(settings), n, noise, seed)
    _refuse_dataset(settings)
    from workbench.agent.demonstrations import demonstrations

    return demonstrations(Facts(settings), n, noise, seed)


def _refuse_dataset(settings: WorldSettings) -> None:
    if settings.kind == "dataset":
        raise InputError('world.kind = "dataset" has no demonstrations to warm-start from; set model to a checkpoint')
