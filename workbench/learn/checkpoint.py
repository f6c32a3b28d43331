"""Checkpoints: everything that an exact resume needs, as safetensors and JSON."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sorl.agent.episode import Episode
from sorl.agent.routing import routers
from sorl.learn import networks
from sorl.learn.rollout import Rollout
from sorl.learn.update import Learner
from sorl.spec import InputError
from sorl.spec.files import words_of

PROBE = "probe.safetensors"  # the gradient that the next probe is compared with
AVERAGE = "average.safetensors"  # the averaged weights of a proximal policy, and the sum of their weights


@dataclass
class Progress:
    """Where a run stands: the next step and what its watches have seen."""

    step: int
    seconds: float
    history: list[dict[str, float | None]]  # the watched diagnostics of every finished step
    rollouts: list[Rollout]


def save(
    folder: Path, learner: Learner, progress: Progress, last: int = 2, pinned: Collection[int] = ()
) -> Path:
    """Write `folder/<step>` in one rename; checkpoints older than the newest `last` go unless their step is
    pinned. Raises OSError, with the checkpoint, where the disk refuses.
    """
    target = folder / f"{progress.step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
    try:
        _write(unfinished, learner, progress)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(f"cannot write checkpoint '{target}': {words_of(OSError(str(error)))}") from error
    if target.exists():
        shutil.rmtree(target)
    os.rename(unfinished, target)
    for old in checkpoints(folder)[:-last]:
        if int(old.name) not in pinned:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _write(unfinished: Path, learner: Learner, progress: Progress) -> None:
    """Write every file of a checkpoint."""
    learner.policy.save_pretrained(unfinished / "policy", safe_serialization=True, max_shard_size="1TB")
    if learner.critic is not None:
        save_file(_contiguous(learner.critic.state_dict()), unfinished / "critic.safetensors")
    for name, optimizer in learner.optimizers.items():
        save_file(_contiguous(_flat_state(optimizer)), unfinished / f"{name}_optimizer.safetensors")
    if learner.probe.before is not None:
        save_file({"before": learner.probe.before}, unfinished / PROBE)
    if learner.average is not None:
        save_file(_contiguous(learner.average.state()), unfinished / AVERAGE)
    rollouts = []
    for i, rollout in enumerate(progress.rollouts):
        save_file(_contiguous(_rollout_tensors(rollout)), unfinished / f"rollout-{i}.safetensors")
        # vars() and not asdict(): the copies of every token that the latter makes were most of the time of a
        # save.
        entry = {"number": rollout.number, "policy_step": rollout.policy_step}
        rollouts.append(entry | {"episodes": [vars(e) | {"routes": None} for e in rollout.episodes]})
    state = vars(progress) | {"updates": learner.updates, "rollouts": rollouts}
    (unfinished / "progress.json").write_text(json.dumps(state))


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer by `parameter.entry`."""
    flat = {}
    for parameter, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            if value is not None:
                flat[f"{parameter}.{key}"] = torch.as_tensor(value)
    return flat


def _rollout_tensors(rollout: Rollout) -> dict[str, Tensor]:
    tensors = {}
    for name in ("log_prob_old", "values", "routes_old"):
        values = getattr(rollout, name)
        if values is not None:
            tensors[name] = values
    routes = [e.routes for e in rollout.episodes if e.routes is not None]
    return tensors | ({"routes": torch.cat(routes)} if routes else {})


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first (a name that is a step, so nothing half-written is among them)."""
    return sorted(p for p in folder.glob("[0-9]*") if p.name.isdecimal() and (p / "progress.json").is_file())


def checkpoint_of(folder: Path, step: int | None = None) -> Path:
    """Return the newest checkpoint in a folder of a run, or that of `step`. Raises InputError where there is
    none.
    """
    found = {int(one.name): one for one in checkpoints(folder)}
    run = folder.parent.name
    if not found:
        raise InputError(
            f"run '{run}' has no checkpoint yet: record.checkpoint_every and record.ladder say when"
        )
    chosen = max(found) if step is None else step
    if chosen not in found:
        raise InputError(
            f"run '{run}' has no checkpoint of step {step}; there is: {', '.join(map(str, found))}"
        )
    return found[chosen]


def refuse_damaged(checkpoint: Path) -> None:
    """Raise InputError, with the file, for a checkpoint with a file that is cut or is no such file: a look at
    headers and sizes, not at the weights.
    """
    with _reading(checkpoint / "progress.json"):
        json.loads((checkpoint / "progress.json").read_text())
    for file in sorted(checkpoint.rglob("*.safetensors")):
        with _reading(file), safe_open(file, framework="pt"):
            pass


def take_over(source: Path, folder: Path) -> None:
    """Make a copy of a checkpoint the only one of `folder`. Raises InputError for one that is damaged."""
    refuse_damaged(source)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
    shutil.copytree(source, unfinished, dirs_exist_ok=True)
    for old in checkpoints(folder):
        shutil.rmtree(old)
    os.rename(unfinished, folder / source.name)


def load(checkpoint: Path, learner: Learner) -> Progress:
    """Put the learner back to where `checkpoint` was written and return the progress. Raises InputError, with
    the file, for one that is damaged.
    """
    _load_policy(checkpoint, learner)
    if learner.critic is not None:
        file = checkpoint / "critic.safetensors"
        with _reading(file):
            learner.critic.load_state_dict(load_file(file))
    for name, optimizer in learner.optimizers.items():
        _load_optimizer(checkpoint / f"{name}_optimizer.safetensors", optimizer)
    if (checkpoint / PROBE).is_file():
        with _reading(checkpoint / PROBE):
            learner.probe.before = load_file(checkpoint / PROBE)["before"]
    if learner.average is not None:
        learner.average.restore(_tensors(checkpoint / AVERAGE))
    return _load_progress(checkpoint, learner)


def _load_policy(checkpoint: Path, learner: Learner) -> None:
    if routers(learner.policy):  # the files of mixtures have the hub's names, and an expert each
        with _reading(checkpoint / "policy"):
            weights = networks.load(checkpoint / "policy").state_dict()
    else:
        weights = _tensors(checkpoint / "policy" / "model.safetensors")
    missing, unexpected = learner.policy.load_state_dict(weights, strict=False)
    # Tied weights are stored once: a missing name that shares its tensor with a stored one is no loss.
    if unexpected or set(missing) - set(getattr(learner.policy, "all_tied_weights_keys", None) or ()):
        raise RuntimeError(f"checkpoint does not fit the model: missing {missing}, unexpected {unexpected}")


def _load_optimizer(file: Path, optimizer: torch.optim.Optimizer) -> None:
    state: dict[int, dict[str, Any]] = {}
    with _reading(file):
        for key, value in load_file(file).items():
            parameter, entry = key.split(".", 1)
            state.setdefault(int(parameter), {})[entry] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _load_progress(checkpoint: Path, learner: Learner) -> Progress:
    """The progress with the rollouts that wait; the learner gets its count of updates."""
    with _reading(checkpoint / "progress.json"):
        stored = json.loads((checkpoint / "progress.json").read_text())
        queue = stored["rollouts"]
        learner.updates = stored.pop("updates")
    for i, entry in enumerate(queue):
        with _reading(checkpoint / f"rollout-{i}.safetensors"):
            queue[i] = _rollout(entry, load_file(checkpoint / f"rollout-{i}.safetensors"))
    with _reading(checkpoint / "progress.json"):
        return Progress(**stored)


def _rollout(entry: dict[str, Any], tensors: dict[str, Tensor]) -> Rollout:
    episodes = [Episode(**episode) for episode in entry["episodes"]]
    routes = tensors.pop("routes", None)
    if routes is not None:
        for episode, own in zip(episodes, routes.split([len(e.tokens) for e in episodes]), strict=True):
            episode.routes = own
    return Rollout(**entry | tensors | {"episodes": episodes})


def _tensors(file: Path) -> dict[str, Tensor]:
    with _reading(file):
        return load_file(file)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file whose content does not fit: a checkpoint has many."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        folder = f"'{file.parent}' (and its other files)" if file.name == "policy" else f"'{file.parent}'"
        raise InputError(
            f"'{file}' cannot be read: {why}; it is damaged (full disk, partial copy): restore it, or remove"
            f" its checkpoint {folder}, and another one is taken"
        ) from None


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
