"""Training steps on a pretended GPU, in a process of its own: `python -m tests.learn.placement [CHECK ...]`.

Tensors of the networks are fake: they have a shape and a device, and no numbers. torch refuses an operation
that mixes devices, as a GPU would, so a step that ends has put every tensor where it belongs. The batch stays
real and on the CPU, as the trainer has it.

The device is torch's spare one (PrivateUse1) and not "cuda": a torch built for CPUs ends the process at the
first gradient of a "cuda" tensor, because it has no guard for that device.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from sorl.agent.engines.hf import TransformersDecoder, sample
from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch
from sorl.learn.checks import synthetic
from sorl.learn.networks import Critic, critic_values, log_probs, scored
from sorl.learn.update import Learner
from sorl.objective import Algorithm, prepare
from sorl.spec import ComputeSettings, LearnSettings

NAME = "pretended"
VOCABULARY = 32
BUDGET = 8  # tokens that a policy may write in an episode
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def register_device() -> torch.device:
    """Tell torch of the pretended device, once a process."""
    module: Any = ModuleType(NAME)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]  # autocast asks, even where it is off
    module.is_available = lambda: False  # an optimizer asks whether its step is being captured
    _setup_privateuseone_for_python_backend(NAME, module)
    return torch.device(NAME, 0)


DEVICE = register_device()


_ATEN = torch.ops.aten
# Operations that read a number of a tensor, and the type of the number; None is the tensor's own.
READS: Mapping[Any, torch.dtype | None] = {
    _ATEN._local_scalar_dense.default: None,
    _ATEN.item.default: None,
    _ATEN.is_nonzero.default: torch.bool,
    _ATEN.equal.default: torch.bool,
}


class OneMode(FakeTensorMode):
    """The mode of all fake tensors of a check; a copy of a network stays in it."""

    def __deepcopy__(self, memo: Any) -> OneMode:
        return self


class Pretend(TorchDispatchMode):
    """Keeps the batch real, and answers where a program reads a number of a tensor that has none.

    Every number reads as 1 and every mask as true everywhere. Both only decide which way a program takes; the
    operations on that way are checked as all others.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        leaves = tree_leaves(given)
        if not any(isinstance(leaf, FakeTensor) for leaf in leaves) and not _names_device(leaves):
            with unset_fake_temporarily():
                return func(*given[0], **given[1])
        if func in READS:
            return _one_of(READS[func] or args[0].dtype)
        args, kwargs = tree_map_only(Tensor, self._as_fake, given)
        if func is _ATEN.index.Tensor:
            return func(*_without_masks(*args))
        return func(*args, **kwargs)

    def _as_fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.fake.from_tensor(tensor)


def _one_of(kind: torch.dtype) -> bool | int | float:
    if kind == torch.bool:
        return True
    return 1.0 if kind.is_floating_point else 1


def _names_device(leaves: list[Any]) -> bool:
    return any(isinstance(leaf, torch.device) and leaf == DEVICE for leaf in leaves)


def _without_masks(tensor: Tensor, indices: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """The same with the number of every entry in the place of a mask over the first axes."""
    mask = indices[0]
    if mask is None or mask.dtype != torch.bool:
        return tensor, indices
    every = torch.arange(mask.numel(), device=mask.device)
    return tensor.flatten(0, mask.dim() - 1), [every, *indices[1:]]


@contextmanager
def pretended() -> Iterator[None]:
    """Inside, tensors of the pretended device are fake and all others real."""
    one_thread = torch.autograd.set_multithreading_enabled(False)  # a mode belongs to a thread
    with one_thread, OneMode() as fake, Pretend(fake):
        yield


def network_of(family: str) -> PreTrainedModel:
    """A policy on the pretended device."""
    kinds: Mapping[str, Callable[[], PreTrainedModel]] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    }
    network = kinds[family]()
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty_like(parameter, device=DEVICE)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=DEVICE))
    if family == "mixtral":
        network.set_experts_implementation("batched_mm")  # the default one has no fake form in float32
    return network


def batch_of(algorithm: Algorithm) -> Batch:
    """A batch with advantages, as the trainer has it before the updates."""
    batch = prepare(algorithm, synthetic(algorithm.group_size, VOCABULARY)[0])
    tensors = {name: x.float() for name, x in vars(batch).items() if _is_double(x)}
    return replace(batch, **tensors)


def _is_double(x: Tensor | None) -> bool:
    return x is not None and x.dtype == torch.float64


# ----------------------------------------------------------------------------------------------------
# What is checked


def update(
    algorithm: str,
    family: str = "llama",
    learn: LearnSettings = LearnSettings(clip_bias_every=1),
    compute: ComputeSettings = ComputeSettings(),
) -> None:
    """One update of policy and critic: where networks, gradients, optimizer state and evidence are."""
    chosen = resolve(algorithm).within(BUDGET)
    batch = batch_of(chosen)
    policy = network_of(family)
    if compute.gradient_checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy.train()
    critic = Critic(policy) if chosen.critic else None
    if family == "mixtral":
        old, routes = scored(policy, batch, 1.0, compute)
        expect("cpu", old_log_prob=old, routes=routes)
        batch = replace(batch, routes_old=routes, routes_behaviour=routes)
    learner = Learner(chosen, learn, policy, critic, compute=compute)
    evidence = learner.update(batch, 0, 0)
    for name, network in {"policy": policy, "critic": critic}.items():
        if network is None:
            continue
        expect(NAME, **{f"{name} {key}": x for key, x in _dots_replaced(network.named_parameters())})
        gradients = [(key, x.grad) for key, x in network.named_parameters() if x.grad is not None]
        assert gradients, f"no gradient of the {name}"
        expect(NAME, **{f"gradient of {name} {key}": x for key, x in _dots_replaced(gradients)})
        expect_state_of(learner.optimizers[name])
    assert learner.updates == 1
    expect("cpu", **{f"evidence {key}": x for key, x in vars(evidence).items() if isinstance(x, Tensor)})


def _dots_replaced(named: Any) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in named:
        yield name.replace(".", "_"), tensor


def expect_state_of(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer has a state of each weight with a gradient, beside it."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = {key: x for key, x in optimizer.state[weight].items() if isinstance(x, Tensor)}
            assert state, "a weight with a gradient has no state"
            expect(NAME, **{f"state {key}": x for key, x in state.items()})


def expect(place: str, **tensors: Tensor | None) -> None:
    """Every tensor is on the device of this type."""
    for name, tensor in tensors.items():
        assert tensor is not None, f"{name} is missing"
        assert tensor.device.type == place, f"{name} is on {tensor.device}, not on {place}"


def passes_without_gradient() -> None:
    """Log-probs at once and in parts, scores and values come back to the device of the tokens."""
    batch = batch_of(resolve("ppo"))
    for family in ("llama", "qwen2", "mixtral"):
        policy = network_of(family)
        for elements in (1 << 24, 2 * VOCABULARY):
            log_prob, entropy = log_probs(policy, batch.tokens, where=batch.mask, elements=elements)
            expect("cpu", log_prob=log_prob, entropy=entropy)
        old, _ = scored(policy, batch, 1.0)
        expect("cpu", old=old, values=critic_values(Critic(policy), batch))


def gradient_of_parts() -> None:
    """Log-probs in parts give the policy gradients on its device."""
    batch = batch_of(resolve("ppo"))
    policy = network_of("qwen2")
    log_prob, entropy = log_probs(
        policy, batch.tokens, grad_entropy=True, where=batch.mask, elements=2 * VOCABULARY
    )
    (log_prob.sum() + entropy.sum()).backward()
    expect(NAME, **{key: x.grad for key, x in _dots_replaced(policy.named_parameters())})


@torch.no_grad()
def sampling() -> None:
    """Tokens that are known on the CPU are read, one is drawn by a generator of the CPU, rows are dropped."""
    for family in ("llama", "qwen2", "mixtral"):
        decoder = TransformersDecoder(network_of(family))
        logits = decoder.feed(torch.ones(3, 4, dtype=torch.long))
        expect(NAME, logits=logits)
        for greedy in (False, True):
            token, log_prob = sample(logits, 0.9, torch.Generator(), greedy, position=4)
            expect("cpu", token=token.cpu(), log_prob=log_prob.cpu())
        decoder.keep(torch.tensor([0, 2]))
        expect(NAME, logits=decoder.feed(torch.ones(2, 1, dtype=torch.long)))


def mixed_devices() -> None:
    """Tokens left on the CPU, or a weight, are refused: the other checks could fail."""
    policy = network_of("llama")
    on_cpu = torch.ones(2, 3, dtype=torch.long)
    expect_refusal(lambda: policy(input_ids=on_cpu, use_cache=False))
    expect_refusal(lambda: policy.lm_head(torch.ones(2, SIZES["hidden_size"])))
    expect_refusal(lambda: expect("cpu", logits=policy.lm_head.weight))


def expect_refusal(work: Callable[[], Any]) -> None:
    """The work raises an error that names the device."""
    with pytest.raises((RuntimeError, AssertionError), match=NAME):
        work()


def sgd() -> LearnSettings:
    """Settings of the other optimizer, with momentum so that it has a state."""
    optimizer = {"kind": "sgd", "momentum": 0.9, "max_grad_norm": 0.5}
    return LearnSettings.model_validate({"policy": optimizer, "critic": optimizer})


def adamw(**changes: Any) -> LearnSettings:
    """Settings of AdamW with clipping."""
    optimizer = {"kind": "adamw", "lr": 1e-6, "max_grad_norm": 0.5}
    return LearnSettings.model_validate({"policy": optimizer, "critic": optimizer} | changes)


def checks() -> dict[str, Callable[[], None]]:
    """Every check by its name."""
    every: dict[str, Callable[[], None]] = {
        "mixed devices": mixed_devices,
        "passes without gradient": passes_without_gradient,
        "gradient of log-probs in parts": gradient_of_parts,
        "sampling": sampling,
        "probe of the gradient": lambda: update("ppo", learn=adamw(probe_every=1)),
        "entropy bonus": lambda: update("grpo", learn=adamw(entropy_coef=0.1)),
        "experts in balance": lambda: update("ppo", "mixtral", adamw(balance_coef=0.1)),
        "experts replayed": lambda: update("minirl", "mixtral", adamw()),
        "micro-batches": lambda: update(
            "st-ppo", learn=adamw(), compute=ComputeSettings(micro_batch_tokens=20)
        ),
        "activations made again": lambda: update(
            "ppo", learn=adamw(), compute=ComputeSettings(gradient_checkpointing=True)
        ),
        "the other optimizer": lambda: update("ppo", learn=sgd()),
    }
    for name in ALGORITHMS:
        every[f"update of {name}"] = lambda name=name: update(name, learn=adamw(clip_bias_every=1))
    return every


def main(names: list[str]) -> int:
    """Make the named checks, or all, and print a line for each; exit code 1 where one fails."""
    known = checks()
    has_failed = False
    for name in names or known:
        try:
            with pretended():
                known[name]()
            print(f"ok: {name}", flush=True)
        except Exception as error:  # noqa: BLE001  the other checks go on
            has_failed = True
            print(f"failed: {name}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc(limit=-14)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
