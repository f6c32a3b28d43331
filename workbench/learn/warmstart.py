"""Initial weights: a model by its name, or a small policy, after it has imitated demonstrations."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sorl.agent.retrievers import cached
from sorl.learn.pulse import Pulse
from sorl.spec import ComputeSettings, EngineSettings, InputError, RunSettings
from sorl.spec.settings import WarmStartSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sorl.agent.episode import Episode
    from sorl.batch import Batch

RESULT = "warmstart.json"  # of a warm start's folder: its success on held-out questions
HELD_OUT = 64  # questions


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
    package = Path(__file__).parents[1]
    files: list[Path] = []
    for pattern in patterns:
        files += package.glob(pattern)
    return b"".join(file.read_bytes() for file in sorted(files))


def key(settings: RunSettings) -> str:
    """Hash of what shapes the weights: the settings of task, network and imitation, the weights of a `model`,
    and the code behind them.
    """
    if settings.model is None:
        shaping = settings.model_dump(include={"world", "policy", "warmstart"})
    else:
        shaping = settings.model_dump(include={"world", "warmstart", "compute"})
        shaping |= {"model": _content(Path(settings.model).expanduser()), "wording": settings.wording}
    shaping["world"].pop("reward", None)
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode() + _code()).hexdigest()[:16]


def _content(folder: Path) -> str:
    """A hash of a model's files; of a model of the hub, its name."""
    if not folder.is_dir():
        return str(folder)
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    stamps = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _digest_of_files(stamps)


@cache
def _digest_of_files(stamps: tuple[tuple[Path, int, int], ...]) -> str:
    """A hash of the contents of files; size and time of each say when it must be read again."""
    digest = hashlib.sha256()
    for file, *_ in stamps:
        with file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def is_cached(settings: RunSettings, cache: Path) -> bool:
    """Whether the warm start of these settings is in the cache; also True for a `model` that needs none."""
    if settings.model is not None and not settings.warmstart.steps:
        return True
    return (cache / "warmstart" / key(settings) / "model.safetensors").is_file()


def ensure(settings: RunSettings, cache: Path, pulse: Pulse | None = None) -> Path:
    """Folder of the warm-started checkpoint. The first process to need it makes it; others wait and then
    share it.
    """
    pulse = pulse or Pulse()
    if settings.model is not None and not settings.warmstart.steps:
        pulse.part("looking for the model, downloaded on first use")
        return locate(settings.model)
    folder = cache / "warmstart" / key(settings)
    if is_cached(settings, cache):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        pulse.part("waiting for the warm start that another cell makes")
        fcntl.flock(handle, fcntl.LOCK_EX)
        return cached(folder, lambda unfinished: _imitate(settings, unfinished, pulse))


class Imitated(NamedTuple):
    """How often a `model` solves held-out questions after its warm start; shares with 95 % intervals."""

    steps: int
    questions: int
    greedy: tuple[float, float, float]  # share, low, high: of the likeliest tokens
    sampled: tuple[float, float, float]

    @property
    def sentence(self) -> str:
        """What is said of it in the run's events."""
        greedy, sampled = (f"{share:.2f} [{low:.2f}, {high:.2f}]" for share, low, high in self[2:])
        return (
            f"after {self.steps} steps of imitation: {greedy} of {self.questions} held-out questions solved"
            f" greedily, {sampled} sampled"
        )


def result_of(folder: Path) -> Imitated | None:
    """What the imitation of a `model` came to; None for weights that imitated nothing, or of another kind."""
    file = folder / RESULT
    return Imitated(**json.loads(file.read_text())) if file.is_file() else None


def _imitate(settings: RunSettings, folder: Path, pulse: Pulse) -> None:
    """Cross-entropy on the tokens that the script wrote; observations and prompts are read,
    never imitated.
    """
    import torch

    from sorl.agent.demonstrations import demonstrations
    from sorl.agent.tokenizer import Codec
    from sorl.agent.worlds import build
    from sorl.learn.networks import with_measured_precision

    if settings.world.kind == "dataset":
        other = "set model to a checkpoint" if settings.model is None else "set warmstart.steps = 0"
        raise InputError(f'world.kind = "dataset" has no demonstrations to warm-start from; {other}')
    warm = settings.warmstart
    settings = with_measured_precision(settings)
    world: Any = build(settings.world)
    torch.set_num_threads(settings.threads)
    model, tokenizer = _network(settings, world)
    codec = Codec(tokenizer, settings.wording)
    episodes = demonstrations(world, warm.steps * warm.batch, warm.noise, warm.seed, codec=codec)
    _descend(settings, model, episodes, tokenizer.pad_token_id, pulse)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    if settings.model is not None:
        (folder / RESULT).write_text(json.dumps(_examine(settings, model, tokenizer, pulse)._asdict()))


def _descend(
    settings: RunSettings, model: Any, episodes: Sequence[Episode], pad_id: int, pulse: Pulse
) -> None:
    """Take the steps of imitation, each on the next episodes."""
    import torch

    warm = settings.warmstart
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=warm.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True
    )
    pulse.part("warm start: imitation step", warm.steps)
    for step in range(warm.steps):
        optimizer.param_groups[0]["lr"] = _learning_rate(warm, step)
        batch = episodes[step * warm.batch : (step + 1) * warm.batch]
        optimizer.zero_grad()
        loss = _imitate_batch(settings, model, batch, pad_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pulse.count(step + 1, detail=f"loss {loss:.2f}")


def _learning_rate(warm: WarmStartSettings, step: int) -> float:
    """Twenty steps up, constant, and down to zero over the last fifth.

    Decaying all the way left 200 steps with nothing learned.
    """
    return warm.lr * min(1.0, (step + 1) / 20, (warm.steps - step) / (0.2 * warm.steps))


def _imitate_batch(settings: RunSettings, model: Any, batch: Sequence[Episode], pad_id: int) -> float:
    """Add the gradient of a batch of demonstrations; returns its loss in nats a written token."""
    from sorl.agent.episode import collate

    written = sum(sum(episode.written) for episode in batch)
    parts = _parts(settings, batch)
    weight = settings.policy.balance / len(parts)
    return sum(_imitate_part(settings, model, collate(part, pad_id), written, weight) for part in parts)


def _parts(settings: RunSettings, batch: Sequence[Episode]) -> list[list[Episode]]:
    """The passes of a batch: as `compute.micro_batch_tokens` bounds them for a `model`, else two halves.

    Halves of like length have a third less padding. Batches stay random: in batches of like length all
    questions have one number of hops, and the third hop is not learned.
    """
    import torch

    from sorl.learn.networks import passes

    lengths = [len(episode.tokens) for episode in batch]
    budget = settings.compute.micro_batch_tokens
    if settings.model is not None and budget is not None:
        return [_taken(batch, rows.tolist()) for rows in passes(torch.tensor(lengths), budget)]
    by_length = sorted(batch, key=lambda episode: len(episode.tokens))
    middle = len(by_length) // 2
    return [by_length[:middle], by_length[middle:]]


def _taken(batch: Sequence[Episode], rows: Sequence[int]) -> list[Episode]:
    return [batch[row] for row in rows]


def _network(settings: RunSettings, world: Any) -> tuple[Any, Any]:
    """The network that is to imitate, and its tokenizer: those of `model`, or a fresh small policy."""
    from sorl.learn import networks

    if settings.model is not None:
        source = locate(settings.model)
        return networks.load(source, settings.compute), tokenizer_of(source)
    tokenizer = world.tokenizer()
    tokenizer.add_tokens([f"<spare{i}>" for i in range(settings.policy.spare_tokens)])
    return networks.create(settings.policy, tokenizer, settings.warmstart.seed), tokenizer


def _imitate_part(settings: RunSettings, model: Any, part: Batch, written: int, balance: float) -> float:
    """Add the gradient of some demonstrations, of a batch in which the script wrote `written` tokens.

    `balance` weighs the load of a mixture's experts. Returns their share of the loss, in nats a token.
    """
    import torch

    from sorl.agent.routing import routed
    from sorl.learn import networks

    compute = settings.compute if settings.model is not None else ComputeSettings()
    with routed(model) as seen, networks.autocast(model.device, compute):
        log_prob, _ = networks.log_probs(model, part.tokens, where=part.mask)
    loss = -torch.where(part.mask, log_prob, 0).sum() / written
    told = float(loss.detach())
    if seen.logits:
        loss = loss + balance * seen.balance(part.inside[:, 1:])
    loss.backward()
    return told


def _examine(settings: RunSettings, model: Any, tokenizer: Any, pulse: Pulse) -> Imitated:
    """Success on held-out questions, of the likeliest tokens and of sampled ones."""
    from sorl.agent.engines import engine_for, listen
    from sorl.learn.evaluate import evaluate

    engine = engine_for(model, tokenizer, EngineSettings(), settings.wording)
    listen(engine, lambda tokens, ended, turn: pulse.count(ended, detail=f"turn {turn}, {tokens:,} tokens"))
    solved = []
    for greedy in (True, False):
        pulse.part("warm start: held-out questions", HELD_OUT, "answered")
        chosen = settings.evaluation.model_copy(update={"episodes": HELD_OUT, "greedy": greedy})
        row = evaluate(engine, settings.model_copy(update={"evaluation": chosen}))
        solved.append((row["success"], row["success_low"], row["success_high"]))
    return Imitated(settings.warmstart.steps, HELD_OUT, *solved)
