"""A causal language model with only the tokens that a task needs: fewer rows, the same text.

A small model spends most of its memory, and much of its time, on rows of the vocabulary that a task never
reads or writes. The trimmed tokenizer splits the texts that it was trimmed for as the whole one does, and the
trimmed model gives a kept token its old probability divided by the sum over the kept tokens.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sorl.agent.demonstrations import demonstrations
from sorl.agent.retrievers import Corpus
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import World
from sorl.agent.worlds.atlas import Atlas, spaced
from sorl.agent.worlds.facts import Facts
from sorl.spec import InputError

ASCII = string.printable[:95] + "\n\t"
QUESTIONS = 2000  # of each split, whose prompts are read
EPISODES = 1000  # demonstrations that are read
NOISE = 0.2  # of these: what goes wrong is written, too
_TEXTS_AT_ONCE = 1000


class Trimmed(NamedTuple):
    """How much of a model was kept."""

    tokens: int
    tokens_before: int
    parameters: int
    parameters_before: int


# ----------------------------------------------------------------------------------------------------
# What a task needs


def tokens_of_world(world: World, tokenizer: PreTrainedTokenizerBase, wording: str) -> set[int]:
    """Ids of prompts, passages and demonstrations of a world, as an agent with this tokenizer reads them."""
    codec = Codec(tokenizer, wording)
    needed: set[int] = set(codec.encode_observation(None))
    for split in ("train", "eval"):
        for question in world.questions(split, 0, 0, QUESTIONS):
            needed.update(codec.encode_prompt(question.text))
    needed |= tokens_of_texts(list(_observations(world)), tokenizer)
    if isinstance(world, Facts | Atlas):
        for episode in demonstrations(world, EPISODES, NOISE, seed=0, codec=codec):
            needed.update(episode.tokens)
    return needed


def tokens_of_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids that occur in `texts`, each of them as it begins a line and as it follows a word."""
    needed: set[int] = set()
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[start : start + _TEXTS_AT_ONCE]
        both = [*some, *(f" {text}" for text in some)]
        needed.update(*tokenizer(both, add_special_tokens=False)["input_ids"])
    return needed


def _observations(world: World) -> Iterator[str]:
    """Every passage of the world's corpus, as an observation words it; none for a world without a corpus."""
    file = world.settings.retriever.corpus or getattr(world, "corpus", None)
    if file is None:
        return
    corpus = Corpus(Path(file))
    for i in range(len(corpus)):
        _, contents = corpus[i]
        yield spaced(contents) if isinstance(world, Atlas) else contents


# ----------------------------------------------------------------------------------------------------
# The tokenizer


def trim_tokenizer(
    tokenizer: PreTrainedTokenizerBase, needed: Iterable[int]
) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """The tokenizer with fewer tokens, and the old id of each new one, in the old order.

    Kept are the ids of `needed`, what they are merged from, the special tokens, ASCII and the byte tokens.
    Any text can still be written, and a text whose ids are all in `needed` is split as before. For byte-pair
    encoding that holds because a kept token keeps the merges of its own derivation: all merges that happen
    are still there, and those that are gone never happened.

    Raises InputError for a tokenizer without a fast backend, or one of a kind that is not known.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"{type(tokenizer).__name__} has no fast tokenizer (tokenizer.json), which is what can be trimmed"
        )
    told = json.loads(backend.to_str())
    kind = told["model"].get("type")
    if kind not in ("BPE", "Unigram", "WordLevel", "WordPiece"):
        raise InputError(f"a {kind} tokenizer cannot be trimmed; BPE, Unigram, WordLevel and WordPiece can")
    if told["model"].get("continuing_subword_prefix") and kind == "BPE":
        raise InputError("a BPE tokenizer with a continuing_subword_prefix cannot be trimmed")
    vocabulary = tokenizer.get_vocab()
    kept = set(needed) | _always_kept(tokenizer, told, vocabulary)
    if kind == "BPE":
        kept |= _derivations(kept, told["model"], vocabulary)
    old = sorted(kept)
    new = {before: after for after, before in enumerate(old)}
    _trim_model(told["model"], new)
    told["added_tokens"] = [
        {**token, "id": new[token["id"]]} for token in told["added_tokens"] if token["id"] in new
    ]
    told["post_processor"] = _renumbered(told.get("post_processor"), new)
    told["padding"] = None
    told["truncation"] = None
    return _wrapped(Tokenizer.from_str(json.dumps(told)), tokenizer), old


def _always_kept(
    tokenizer: PreTrainedTokenizerBase, told: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> set[int]:
    """Ids that every text may need: special tokens, those of the chat template, ASCII, bytes."""
    kept = {id_ for id_ in tokenizer.all_special_ids if id_ is not None}
    template = str(tokenizer.chat_template or "")
    kept |= {token["id"] for token in told["added_tokens"] if token["content"] in template}
    kept |= {vocabulary[f"<0x{byte:02X}>"] for byte in range(256) if f"<0x{byte:02X}>" in vocabulary}
    # of byte-level vocabularies, and of those that spell characters: the pieces of one character
    pre_tokenizers = json.dumps(told.get("pre_tokenizer")) + json.dumps(told.get("decoder"))
    if "ByteLevel" in pre_tokenizers:
        from tokenizers.pre_tokenizers import ByteLevel

        kept |= {vocabulary[character] for character in ByteLevel.alphabet() if character in vocabulary}
    kept |= {vocabulary[character] for character in [*ASCII, "▁"] if character in vocabulary}
    kept |= tokens_of_texts(list(ASCII), tokenizer)
    unknown = told["model"].get("unk_token")
    if unknown in vocabulary:
        kept.add(vocabulary[unknown])
    if told["model"].get("unk_id") is not None:
        kept.add(told["model"]["unk_id"])
    return kept


def _derivations(kept: set[int], model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> set[int]:
    """Ids of the pieces that byte-pair encoding makes on its way to the kept ones."""
    rank = {pair: i for i, pair in enumerate(map(_pair, model["merges"]))}
    piece_of = {id_: piece for piece, id_ in vocabulary.items()}
    found: set[int] = set()
    for id_ in kept:
        found.update(
            vocabulary[piece] for piece in _made_on_the_way(piece_of[id_], rank) if piece in vocabulary
        )
    return found


def _made_on_the_way(piece: str, rank: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """The characters of `piece`, and what the merges make of them until none is left."""
    parts = list(piece)
    yield from parts
    while len(parts) > 1:
        ranks = [rank.get(pair, len(rank)) for pair in pairwise(parts)]
        best = min(range(len(ranks)), key=ranks.__getitem__)
        if ranks[best] == len(rank):
            return
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
        yield parts[best]


def _pair(merge: Any) -> tuple[str, str]:
    """A merge of tokenizer.json: a pair, or in older files two words with a blank between them."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _trim_model(model: dict[str, Any], new: Mapping[int, int]) -> None:
    """Leave out of vocabulary and merges of tokenizer.json what is not in `new`: old id to new one."""
    if model["type"] == "Unigram":
        model["vocab"] = [piece for id_, piece in enumerate(model["vocab"]) if id_ in new]
        model["unk_id"] = new.get(model["unk_id"])
        return
    model["vocab"] = {piece: new[id_] for piece, id_ in model["vocab"].items() if id_ in new}
    if model["type"] == "BPE":
        known = model["vocab"]
        pairs = map(_pair, model["merges"])
        model["merges"] = [[a, b] for a, b in pairs if a in known and b in known and a + b in known]


def _renumbered(node: Any, new: Mapping[int, int]) -> Any:
    """A post-processor of tokenizer.json with new ids: in templates, and in pairs of a token and its id."""
    if isinstance(node, list):
        if len(node) == 2 and isinstance(node[0], str) and isinstance(node[1], int):
            return [node[0], new[node[1]]]
        return [_renumbered(part, new) for part in node]
    if isinstance(node, dict):
        renumbered = {key: _renumbered(value, new) for key, value in node.items()}
        if "ids" in node:
            renumbered["ids"] = [new[id_] for id_ in node["ids"]]
        return renumbered
    return node


def _wrapped(backend: Tokenizer, like: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """A tokenizer around `backend`, with the special tokens and the chat template of `like`."""
    fast: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = fast(
        tokenizer_object=backend,
        **{name: str(token) for name, token in like.special_tokens_map.items() if isinstance(token, str)},
        clean_up_tokenization_spaces=False,
        model_max_length=like.model_max_length,
    )
    made.chat_template = like.chat_template
    return made


# ----------------------------------------------------------------------------------------------------
# The model


def trim_model(model: PreTrainedModel, old: Sequence[int]) -> PreTrainedModel:
    """The model with the rows `old` of its embedding and its head, in this order; a tied head stays tied.

    It is changed in place, with the ids in its configurations. Raises InputError for a model whose vocabulary
    is in more places than these two.
    """
    config: Any = model.config
    if getattr(config, "vocab_size_per_layer_input", None):
        raise InputError(f"{type(model).__name__} has embeddings in every layer, which cannot be trimmed")
    rows = torch.tensor(old)
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise InputError(f"{type(model).__name__} has no plain embedding and head, which can be trimmed")
    tied = head.weight is embedding.weight
    new = {before: after for after, before in enumerate(old)}
    embedding.weight = nn.Parameter(embedding.weight.detach()[rows].clone())
    embedding.num_embeddings = len(old)
    if embedding.padding_idx is not None:
        embedding.padding_idx = new.get(embedding.padding_idx)
    head.weight = embedding.weight if tied else nn.Parameter(head.weight.detach()[rows].clone())
    head.out_features = len(old)
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias.detach()[rows].clone())
    config.vocab_size = len(old)
    for told in (config, model.generation_config):
        _renumber_ids(told, new)
    return model


def _renumber_ids(config: Any, new: Mapping[int, int]) -> None:
    """Give every `..._token_id` of a configuration its new number; one that is gone becomes None."""
    for name, value in list(vars(config).items() if config is not None else ()):
        if not name.endswith("_token_id"):
            continue
        if isinstance(value, list):
            setattr(config, name, [new[id_] for id_ in value if id_ in new])
        elif isinstance(value, int):
            setattr(config, name, new.get(value))


def trim(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, needed: Iterable[int], folder: Path
) -> Trimmed:
    """Save a copy of model and tokenizer with the tokens that are needed in `folder`."""
    smaller, old = trim_tokenizer(tokenizer, needed)
    copied = trim_model(deepcopy(model), old)
    copied.save_pretrained(folder)
    smaller.save_pretrained(folder)
    vocabulary: Any = model.get_input_embeddings()
    return Trimmed(len(old), vocabulary.num_embeddings, _size(copied), _size(model))


def _size(model: nn.Module) -> int:
    """How many parameters a model has, a shared one once."""
    return sum(parameter.numel() for parameter in model.parameters())
