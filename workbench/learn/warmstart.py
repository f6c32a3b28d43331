"""The warm start: imitation on noisy scripted episodes, cached by the hash of everything that shapes it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from workbench.learn.locate import locate
from workbench.spec import RunSettings

# The code that decides the demonstrated text, the network and the imitation: when it changes, so may the weights.
_CODE = ("agent/*.py", "agent/worlds/*.py", "agent/retrievers/*.py", "learn/warmstart.py", "learn/policy.py")


def key(settings: RunSettings) -> str:
    """Hash of what shapes the weights: the settings of task, network and imitation, and the code behind them."""
    shaping = {
        "world": settings.world.model_dump(exclude={"reward"}),
        "policy": settings.policy.model_dump(),
        "warmstart": settings.warmstart.model_dump(),
    }
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode() + _code()).hexdigest()[:16]


@cache
def _code() -> bytes:
    room = Path(__file__).parents[1]
    return b"".join(file.read_bytes() for file in sorted(path for pattern in _CODE for path in room.glob(pattern)))


def made(settings: RunSettings, cache: Path) -> bool:
    """Whether the warm start of these settings is in the cache; also True for a `model`, which is loaded as it is."""
    return settings.model is not None or (cache / "warmstart" / key(settings) / "model.safetensors").is_file()


def ensure(settings: RunSettings, cache: Path) -> Path:
    """Folder of the warm-started checkpoint. The first process to need it makes it; others wait and then share it."""
    if settings.model is not None:
        return locate(settings.model)
    folder = cache / "warmstart" / key(settings)
    if made(settings, cache):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not made(settings, cache):
            unfinished = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
            try:
                _imitate(settings, unfinished)
                os.rename(unfinished, folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _imitate(settings: RunSettings, folder: Path) -> None:
    """Cross-entropy on the tokens that the script wrote; observations and prompts are read, never imitated."""
    import torch

    from workbench.agent.episode import collate
    from workbench.agent.worlds.build import demonstrations_of, tokenizer_of
    from workbench.learn import networks

    warm = settings.warmstart
    torch.set_num_threads(settings.threads)
    tokenizer = tokenizer_of(settings.world)
    model = networks.create(settings.policy, tokenizer, warm.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=warm.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    # Constant, then down to zero over the last fifth: decaying all the way left 200 steps with nothing learned.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / 20, (warm.steps - i) / (0.2 * warm.steps))
    )
    episodes = demonstrations_of(settings.world, warm.steps * warm.batch, warm.noise, warm.seed)
    for start in range(0, len(episodes), warm.batch):
        batch = sorted(episodes[start : start + warm.batch], key=lambda e: len(e.tokens))
        written = sum(sum(e.written) for e in batch)
        optimizer.zero_grad()
        # Two halves of like length: a third less padding. Batches themselves stay random: batches of like length hold
        # questions of one number of hops, and the third hop is then not learned.
        for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
            part = collate(half, tokenizer.pad_token_id)
            log_prob, _ = networks.log_probs(model, part.tokens)
            (-torch.where(part.mask, log_prob, 0).sum() / written).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
