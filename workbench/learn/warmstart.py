"""Initial weights: a model by its name, or a small policy that imitates demonstrations."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sorl.agent.retrievers import cached
from sorl.learn.pulse import Pulse
from sorl.spec import InputError, RunSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def locate(model: str) -> Path:
    """The folder of `model`: itself, or the hub's files of it, downloaded on first use; InputError without
    either.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise InputError(
            f"no folder '{model}' for model; give a folder, or a name of the hub like 'Qwen/Qwen2.5-0.5B'"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        no_pickles_no_code = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
        return Path(snapshot_download(model, allow_patterns=no_pickles_no_code))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        problem = (
            f"model '{model}' is no folder here, and the Hugging Face hub did not give it: {_reason(error)}"
        )
        hint = f"Download it where there is a network (`hf download {model}`) and set model to its folder"
        raise InputError(f"{problem}. {hint}") from error


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, padding with <eos> if it must; InputError for none, or one that
    needs code.
    """
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no tokenizer in '{folder}': {_reason(error)}; tokenizer.save_pretrained saves it"
        ) from error
    if loaded.pad_token_id is None:
        loaded.pad_token = loaded.eos_token or loaded.convert_ids_to_tokens(0)
    return loaded


@cache
def _code() -> bytes:
    """The code behind the demonstrated text, the network and the imitation: when it changes, so may the
    weights.
    """
    folders = ("agent/*.py", "agent/worlds/*.py", "agent/retrievers/*.py")
    patterns = (*folders, "learn/warmstart.py", "learn/networks.py", "learn/packed.py")
    files = sorted(path for pattern in patterns for path in Path(__file__).parents[1].glob(pattern))
    return b"".join(file.read_bytes() for file in files)


def key(settings: RunSettings) -> str:
    """Hash of what shapes the weights: the settings of task, network and imitation, and the
    code behind them.
    """
    shaping = settings.model_dump(include={"world", "policy", "warmstart"})
    shaping["world"].pop("reward", None)
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode() + _code()).hexdigest()[:16]


def made(settings: RunSettings, cache: Path) -> bool:
    """Whether the warm start of these settings is in the cache; also True for a `model`, which is loaded as
    it is.
    """
    return settings.model is not None or (cache / "warmstart" / key(settings) / "model.safetensors").is_file()


def ensure(settings: RunSettings, cache: Path, pulse: Pulse | None = None) -> Path:
    """Folder of the warm-started checkpoint. The first process to need it makes it; others wait and then
    share it.
    """
    pulse = pulse or Pulse()
    if settings.model is not None:
        pulse.part("looking for the model, downloaded on first use")
        return locate(settings.model)
    folder = cache / "warmstart" / key(settings)
    if made(settings, cache):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        pulse.part("waiting for the warm start that another cell makes")
        fcntl.flock(handle, fcntl.LOCK_EX)
        return cached(folder, lambda unfinished: _imitate(settings, unfinished, pulse))


def _imitate(settings: RunSettings, folder: Path, pulse: Pulse) -> None:
    """Cross-entropy on the tokens that the script wrote; observations and prompts are read,
    never imitated.
    """
    pulse.part("warm start: writing demonstrations")
    import torch

    from sorl.agent.demonstrations import demonstrations
    from sorl.agent.episode import collate
    from sorl.agent.routing import routed
    from sorl.agent.worlds import build
    from sorl.agent.worlds.atlas import Atlas
    from sorl.agent.worlds.facts import Facts
    from sorl.learn import networks

    if settings.world.kind == "dataset":
        raise InputError(
            'world.kind = "dataset" has no demonstrations to warm-start from; set model to a checkpoint'
        )
    warm = settings.warmstart
    world = build(settings.world)
    assert isinstance(world, Facts | Atlas)
    torch.set_num_threads(settings.threads)
    tokenizer = world.tokenizer()
    tokenizer.add_tokens([f"<spare{i}>" for i in range(settings.policy.spare_tokens)])
    model = networks.create(settings.policy, tokenizer, warm.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=warm.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True
    )
    episodes = demonstrations(world, warm.steps * warm.batch, warm.noise, warm.seed)
    pulse.part("warm start: imitation step", warm.steps)
    for i in range(warm.steps):
        # Constant, then down to zero over the last fifth: decaying all the way left 200 steps with nothing
        # learned.
        optimizer.param_groups[0]["lr"] = warm.lr * min(
            1.0, (i + 1) / 20, (warm.steps - i) / (0.2 * warm.steps)
        )
        batch = sorted(episodes[i * warm.batch : (i + 1) * warm.batch], key=lambda e: len(e.tokens))
        written = sum(sum(e.written) for e in batch)
        optimizer.zero_grad()
        total = 0.0
        # Two halves of like length: a third less padding. Batches stay random: in batches of like length all
        # questions have one number of hops, and the third hop is not learned.
        for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
            part = collate(half, tokenizer.pad_token_id)
            with routed(model) as seen:
                log_prob, _ = networks.log_probs(model, part.tokens, where=part.mask)
            loss = -torch.where(part.mask, log_prob, 0).sum() / written
            total += float(loss.detach())
            if seen.logits:
                # the mean of the halves
                loss = loss + settings.policy.balance / 2 * seen.balance(part.inside[:, 1:])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pulse.count(i + 1, detail=f"loss {total:.2f}")
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
