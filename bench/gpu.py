"""What a GPU does: equality with the CPU, speed, memory, cost of recording, and a short experiment.

    python -m bench.gpu OUT --minutes 6
    python -m bench.gpu OUT --device cpu --tiny

Needs torch and transformers. A part that needs more (sorl with pydantic, pyarrow, trl) says why it is not
run, and the others go on. `OUT/gpu.json` is written anew after every row, so a run that is cut off keeps its
rows. Weights are random except in the experiment: what they are does not change what a step costs.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from glob import glob
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

Row = dict[str, Any]
Work = Callable[[], object]
PACKAGES = ("torch", "transformers", "pydantic", "pyarrow", "duckdb", "accelerate", "trl", "vllm")
FLOAT32 = "float32"
BFLOAT16 = "bfloat16"


# ----------------------------------------------------------------------------------------------------
# The run: parts, their time, their rows


@dataclass
class Bench:
    """Where and how large to measure, and until when the present part may go on."""

    device: torch.device
    is_tiny: bool
    folder: Path
    model: Path | None = None
    until: float = 0.0  # of time.monotonic()

    @property
    def repeats(self) -> int:
        """Timed repetitions of each side, after a warm-up."""
        return 1 if self.is_tiny else 5

    @property
    def few_repeats(self) -> int:
        """The same of work that takes seconds."""
        return 1 if self.is_tiny else 3

    @property
    def seconds_left(self) -> float:
        """Of the present part."""
        return self.until - time.monotonic()


@dataclass(frozen=True)
class Part:
    """A part of the script: a row after the other, and its share of the time."""

    name: str
    share: float
    rows: Callable[[Bench], Iterator[Row]]


@dataclass
class Report:
    """The rows of each part, on the disk after every one."""

    file: Path
    parts: dict[str, Row] = field(default_factory=dict)

    def open_part(self, name: str) -> None:
        """Begin a part without rows."""
        self.parts[name] = {"rows": [], "ended": "cut off"}
        print(f"\n== {name}", flush=True)

    def add_row(self, name: str, row: Row) -> None:
        """Keep a row and print it."""
        self.parts[name]["rows"].append(row)
        self.write()
        print("  " + ", ".join(f"{key} {_readable(value)}" for key, value in row.items()), flush=True)

    def close_part(self, name: str, ended: str, seconds: float) -> None:
        """Say how a part ended."""
        self.parts[name] |= {"ended": ended, "seconds": round(seconds, 2)}
        self.write()
        print(f"  ({ended}, {seconds:.1f} s)", flush=True)

    def write(self) -> None:
        """Put all rows on the disk, whole or not at all."""
        unfinished = self.file.with_suffix(".writing")
        unfinished.write_text(json.dumps(self.parts, indent=1) + "\n")
        unfinished.replace(self.file)


def _readable(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_part(part: Part, bench: Bench, report: Report) -> None:
    """Take rows of a part until it ends, fails, or its time is over."""
    report.open_part(part.name)
    began = time.monotonic()
    ended = "complete"
    try:
        for row in part.rows(bench):
            report.add_row(part.name, row)
            if bench.seconds_left <= 0:
                ended = "stopped: its time is over"
                break
    except ImportError as error:
        ended = f"not run: {error}"
    except Exception as error:  # noqa: BLE001  the other parts go on
        ended = f"failed: {type(error).__name__}: {str(error)[:500]}"
    free_memory(bench.device)
    report.close_part(part.name, ended, time.monotonic() - began)


def run_parts(parts: list[Part], bench: Bench, report: Report, end: float) -> None:
    """Run the parts in order until `end`; time that one leaves over is shared among the rest."""
    for number, part in enumerate(parts):
        shares = sum(later.share for later in parts[number:])
        now = time.monotonic()
        bench.until = now + max(0.0, end - now) * part.share / shares
        run_part(part, bench, report)


# ----------------------------------------------------------------------------------------------------
# Time and memory


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Work, device: torch.device) -> float:
    """Seconds that the device and the host need for the work, by the clock of the host."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def device_seconds_of(work: Work, device: torch.device) -> float:
    """Seconds between two events on the device; on a CPU those of the clock."""
    if device.type != "cuda":
        return seconds_of(work, device)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1000


@dataclass(frozen=True)
class Pairs:
    """Seconds of two sides that ran in turn."""

    ours: list[float]
    baseline: list[float]

    def as_row(self, units: float, unit: str) -> Row:
        """Units a second of both sides and the median of the ratios; over 1, ours is faster."""
        pairs = zip(self.ours, self.baseline, strict=True)
        ratios = [theirs / ours for ours, theirs in pairs]
        return {
            f"ours_{unit}_per_s": units / median(self.ours),
            f"baseline_{unit}_per_s": units / median(self.baseline),
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }


def alternate(ours: Work, baseline: Work, device: torch.device, repeats: int) -> Pairs:
    """Time both sides in turn, after a warm-up of each."""
    ours()
    baseline()
    pairs = Pairs([], [])
    for _ in range(repeats):
        pairs.ours.append(seconds_of(ours, device))
        pairs.baseline.append(seconds_of(baseline, device))
    return pairs


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds, and forget the peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def memory_row(device: torch.device, parameters: int) -> Row:
    """Bytes a parameter that are held now, and at the peak; empty on a CPU."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    held = torch.cuda.memory_allocated(device)
    return {
        "peak_gb": peak / 1e9,
        "held_bytes_a_parameter": held / parameters,
        "peak_bytes_a_parameter": peak / parameters,
    }


def precision(device: torch.device, name: str) -> torch.autocast:
    """Matrix products in this precision; weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=name == BFLOAT16)


# ----------------------------------------------------------------------------------------------------
# Models and batches


@dataclass(frozen=True)
class Shape:
    """A decoder by hand: its family, its sizes, and its family's vocabulary."""

    name: str
    family: str
    hidden: int
    mlp: int
    layers: int
    heads: int
    key_value_heads: int
    head: int  # width of one
    full_vocabulary: int

    def build(self, vocabulary: int, device: torch.device) -> Any:
        """A model of random weights in float32, without dropout."""
        config = AutoConfig.for_model(
            self.family,
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            head_dim=self.head,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        with device:
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device)


TRIMMED = 8192  # vocabulary of a task with few words
# The shapes of Gemma 3 270M (105 million parameters beside its vocabulary), Qwen2 0.5B, Qwen2 1.5B.
SHAPES = (
    Shape("110M", "gemma3_text", 640, 2048, 18, 4, 1, 256, 262_144),
    Shape("0.5B", "qwen2", 896, 4864, 24, 14, 2, 64, 151_936),
    Shape("1.5B", "llama", 1536, 8960, 28, 12, 2, 128, 128_256),
)
TINY_SHAPES = (
    Shape("tiny gemma", "gemma3_text", 32, 64, 1, 2, 1, 16, 512),
    Shape("tiny qwen", "qwen2", 32, 64, 1, 2, 2, 16, 512),
)
# Wide enough to show rounding, small enough for the CPU; the second trains in packed passes on a CPU.
COMPARED = (
    Shape("qwen2", "qwen2", 256, 512, 4, 4, 2, 64, 2048),
    Shape("llama", "llama", 256, 512, 4, 4, 4, 64, 2048),
    Shape("gemma3", "gemma3_text", 256, 512, 4, 4, 2, 64, 2048),
)


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model has; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Episodes:
    """Random rows of tokens with stretches that the policy wrote, on the CPU as a trainer has them."""

    tokens: Tensor  # (B, T)
    mask: Tensor  # (B, T) bool: the policy wrote it
    response: Tensor  # (B, T) bool: it comes after the prompt
    length: Tensor  # (B,)
    advantages: Tensor  # (B, T)
    old: Tensor  # (B, T) log-probs, of the policy that sampled

    @property
    def trained(self) -> int:
        """Tokens that are trained on."""
        return int(self.mask.sum())


def make_episodes(rows: int, width: int, vocabulary: int, is_ragged: bool = True) -> Episodes:
    """Rows of a prompt and turns: the policy writes a stretch, the world answers with another."""
    stream = torch.Generator().manual_seed(1)
    place = torch.arange(width)
    tokens = torch.randint(1, vocabulary, (rows, width), generator=stream)
    length = torch.full((rows,), width)
    if is_ragged:
        length[1:] = torch.randint(width // 2, width + 1, (rows - 1,), generator=stream)
    inside = place < length[:, None]
    response = inside & (place >= width // 4)
    mask = response & (place // max(1, width // 8) % 2 == 0)
    advantages = torch.randn(rows, 1, generator=stream).expand(rows, width)
    return Episodes(
        tokens=torch.where(inside, tokens, 0),
        mask=mask,
        response=response,
        length=length,
        advantages=torch.where(mask, advantages, 0.0),
        old=torch.zeros(rows, width),
    )


# ----------------------------------------------------------------------------------------------------
# A step by transformers alone: the baseline, and what is measured where sorl is not importable


def plain_log_probs(model: Any, tokens: Tensor) -> Tensor:
    """Log-probs (B, T) of tokens on the model's device, all logits at once; 0 at position 0."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    chosen = -F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return F.pad(chosen.view(len(tokens), -1), (1, 0))


class PlainTrainer:
    """A clipped policy gradient with AdamW, as one writes it by hand."""

    def __init__(self, model: Any, dtype: str) -> None:
        self.model = model
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def update(self, episodes: Episodes) -> Row:
        """One step; what it read and made, for a comparison."""
        device = self.model.device
        mask = episodes.mask.to(device)
        self.optimizer.zero_grad()
        with precision(device, self.dtype):
            log_prob = plain_log_probs(self.model, episodes.tokens.to(device))
        ratio = (log_prob - episodes.old.to(device)).exp()
        advantages = episodes.advantages.to(device)
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -torch.where(mask, gain, 0).sum() / mask.sum()
        loss.backward()
        length = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"log_prob": log_prob.detach(), "loss": float(loss.detach()), "grad_norm": float(length)}


class OurTrainer:
    """sorl's `Learner` on the same episodes."""

    def __init__(self, model: Any, dtype: str, algorithm: str = "grpo", clip_bias_every: int = 0) -> None:
        from sorl.algorithms import resolve
        from sorl.learn.networks import Critic
        from sorl.learn.update import Learner
        from sorl.spec import ComputeSettings, LearnSettings

        optimizer = {"kind": "adamw", "lr": 1e-6, "max_grad_norm": 1.0}
        settings = {"policy": optimizer, "critic": optimizer, "clip_bias_every": clip_bias_every}
        chosen = resolve(algorithm)
        critic = Critic(model) if chosen.critic else None
        if critic is not None:  # a head of zeros would give the critic's layers no gradient
            nn.init.constant_(critic.head.weight, 0.1)
        self.learner = Learner(
            chosen,
            LearnSettings.model_validate(settings),
            model,
            critic,
            compute=ComputeSettings.model_validate({"dtype": dtype, "device": model.device.type}),
        )

    def update(self, episodes: Episodes) -> Row:
        """One step; what it read and made, for a comparison."""
        evidence = self.learner.update(as_batch(episodes), 0, 0)
        assert evidence.log_prob is not None  # our own trainer always tells it
        scalars = {name: values[0] for name, values in evidence.scalars.items()}
        return {
            "log_prob": evidence.log_prob[0],
            "loss": scalars["policy_loss"],
            "grad_norm": scalars["grad_norm"],
            "value_loss": scalars.get("value_loss"),
            "critic_grad_norm": scalars.get("critic_grad_norm"),
        }


def as_batch(episodes: Episodes) -> Any:
    """The episodes as a batch of sorl's."""
    from sorl.batch import Batch

    rows = torch.arange(len(episodes.tokens))
    return Batch(
        tokens=episodes.tokens,
        response=episodes.response,
        mask=episodes.mask,
        length=episodes.length,
        group=rows // 2,
        trajectory=rows,
        score=episodes.advantages[:, -1],
        log_prob_behaviour=episodes.old,
        log_prob_old=episodes.old,
        values=torch.zeros_like(episodes.old),
        advantages=episodes.advantages,
        returns=episodes.advantages,
    )


def why_not_sorl() -> str:
    """Why sorl's trainer cannot be imported; empty where it can."""
    try:
        import sorl.learn.update  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def trainer_of(model: Any, dtype: str, algorithm: str = "grpo") -> PlainTrainer | OurTrainer:
    """Our trainer where it is importable, else the plain one."""
    return PlainTrainer(model, dtype) if why_not_sorl() else OurTrainer(model, dtype, algorithm)


# ----------------------------------------------------------------------------------------------------
# Part 1: the machine


def measure_machine(bench: Bench) -> Iterator[Row]:
    """Card, versions, and what the card reaches in a matrix product and a copy."""
    row: Row = {"device": str(bench.device), "python": sys.version.split()[0]}
    if bench.device.type == "cuda":
        about = torch.cuda.get_device_properties(bench.device)
        row |= {
            "card": about.name,
            "memory_gb": about.total_memory / 1e9,
            "capability": f"{about.major}.{about.minor}",
            "driver": driver_version(),
            "cuda": torch.version.cuda,
            "bf16": torch.cuda.is_bf16_supported(),
        }
    yield row
    yield {name: installed_version(name) for name in PACKAGES}
    yield {"sorl's trainer": why_not_sorl() or "importable"}
    yield measure_ceilings(bench)


def installed_version(name: str) -> str:
    """The version of a package, or that there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def driver_version() -> str:
    """The driver's version by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not known: {error}"
    return answer.stdout.strip()


def measure_ceilings(bench: Bench) -> Row:
    """Rates of a large bf16 matrix product and of a large copy, bytes read and written."""
    size = 256 if bench.is_tiny else 8192
    left = torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
    right = torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
    wide = torch.randn(4 * size, size, device=bench.device)
    copy = torch.empty_like(wide)
    products = [device_seconds_of(lambda: left @ right, bench.device) for _ in range(3 + bench.repeats)]
    copies = [device_seconds_of(lambda: copy.copy_(wide), bench.device) for _ in range(3 + bench.repeats)]
    return {
        "matmul_bf16_tflops": 2 * size**3 / median(products[3:]) / 1e12,
        "copy_tb_per_s": 2 * wide.numel() * 4 / median(copies[3:]) / 1e12,
    }


# ----------------------------------------------------------------------------------------------------
# Part 2: the GPU computes what the CPU does


def measure_equality(bench: Bench) -> Iterator[Row]:
    """Losses, log-probs and gradients of one step, CPU against GPU, in both precisions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    yield {"step": "sorl" if not why_not_sorl() else f"plain, because {why_not_sorl()}", "tf32": "off"}
    yield {"packed passes": "CPU only; llama in float32 is packed on the CPU and padded on the GPU"}
    for shape in COMPARED:
        yield from compare_devices(shape, bench)


def compare_devices(shape: Shape, bench: Bench) -> Iterator[Row]:
    """Rows of one family: the GPU against the CPU, and the rounding of bf16 beside them."""
    rows = 4 if bench.is_tiny else 16
    episodes = make_episodes(rows, 32 if bench.is_tiny else 128, shape.full_vocabulary)
    cpu = torch.device("cpu")
    on_cpu = {dtype: take_step(shape, episodes, cpu, dtype) for dtype in (FLOAT32, BFLOAT16)}
    for dtype in (FLOAT32, BFLOAT16):
        on_device = take_step(shape, episodes, bench.device, dtype)
        yield {"model": shape.name, "compared": f"{bench.device} and cpu, {dtype}"} | differences(
            on_device, on_cpu[dtype], episodes.mask
        )
    yield {"model": shape.name, "compared": "bfloat16 and float32, cpu"} | differences(
        on_cpu[BFLOAT16], on_cpu[FLOAT32], episodes.mask
    )


def take_step(shape: Shape, episodes: Episodes, device: torch.device, dtype: str) -> Row:
    """One update with a critic from the same weights; also the gradients and weights after it, on the CPU."""
    model = shape.build(shape.full_vocabulary, torch.device("cpu"))
    with torch.no_grad():
        old = plain_log_probs(model, episodes.tokens)
    stale = replace(episodes, old=torch.where(episodes.mask, old + 0.05 * episodes.advantages, 0.0))
    model = model.to(device)
    outcome = trainer_of(model, dtype, "ppo").update(stale)
    gradients = [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
    weights = [p.detach().flatten().cpu() for p in model.parameters()]
    return outcome | {"gradient": torch.cat(gradients), "weights": torch.cat(weights)}


def differences(step: Row, reference: Row, mask: Tensor) -> Row:
    """How far a step is from another one."""
    apart = (step["log_prob"].cpu() - reference["log_prob"].cpu())[mask].abs()
    gradient = step["gradient"] - reference["gradient"]
    row = {
        "log_prob_max_nats": float(apart.max()),
        "log_prob_mean_nats": float(apart.mean()),
        "gradient_relative": float(gradient.norm() / reference["gradient"].norm()),
        "weights_max": float((step["weights"] - reference["weights"]).abs().max()),
    }
    for name in ("loss", "grad_norm", "value_loss", "critic_grad_norm"):
        if reference.get(name) and name in step:
            row[f"{name}_relative"] = abs(step[name] / reference[name] - 1)
    return row


# ----------------------------------------------------------------------------------------------------
# Part 3: speed and memory by size


@dataclass(frozen=True)
class Sizes:
    """Rows and tokens of the measured passes."""

    rows: int  # trained on
    width: int
    sampled: int  # rows that are sampled together
    prompt: int
    written: int

    @classmethod
    def of(cls, bench: Bench) -> Sizes:
        """Sizes that fill a GPU, or tiny ones."""
        return cls(4, 24, 4, 6, 4) if bench.is_tiny else cls(8, 512, 32, 64, 32)


def shapes_of(bench: Bench) -> tuple[Shape, ...]:
    """The sizes of models to measure."""
    return TINY_SHAPES if bench.is_tiny else SHAPES


def trimmed_vocabulary(shape: Shape) -> int:
    """The vocabulary of a task with few words, smaller than the family's."""
    return min(TRIMMED, shape.full_vocabulary // 2)


def measure_speed(bench: Bench) -> Iterator[Row]:
    """Generate, log-probs, a training step and its memory: every size, with few words first."""
    shapes = shapes_of(bench)
    cases = [(shape, trimmed_vocabulary(shape)) for shape in shapes]
    cases += [(shape, shape.full_vocabulary) for shape in shapes]
    for shape, vocabulary in cases:
        what = {"model": shape.name, "vocabulary": vocabulary}
        for measure in (measure_passes, measure_step, measure_critic):
            try:
                for row in measure(shape, vocabulary, bench):
                    yield what | row
            except torch.OutOfMemoryError:
                yield what | {"measured": measure.__name__, "result": "out of memory"}
            free_memory(bench.device)


def measure_passes(shape: Shape, vocabulary: int, bench: Bench) -> Iterator[Row]:
    """Tokens a second of decoding and of log-probs: ours and transformers' in turn."""
    sizes = Sizes.of(bench)
    model = shape.build(vocabulary, bench.device)
    yield {"measured": "parameters", "millions": count_parameters(model) / 1e6}
    rounded = in_bfloat16(model)
    prompt = torch.randint(1, vocabulary, (sizes.sampled, sizes.prompt), device=bench.device)
    ours = generator_of(rounded, prompt, sizes.written)
    baseline: Work = partial(generate, rounded, prompt, sizes.written)
    pairs = alternate(ours, baseline, bench.device, bench.few_repeats)
    yield {"measured": "generate"} | pairs.as_row(sizes.sampled * sizes.written, "tokens")
    episodes = make_episodes(sizes.rows, sizes.width, vocabulary, is_ragged=False)
    ours = scorer_of(model, episodes)
    baseline = partial(score_plainly, model, episodes)
    pairs = alternate(ours, baseline, bench.device, bench.repeats)
    yield {"measured": "log-probs"} | pairs.as_row(episodes.tokens.numel(), "tokens")


def in_bfloat16(model: Any) -> Any:
    """A copy of the model that samples, as sorl's engine makes one with engine.dtype = "bfloat16"."""
    return deepcopy(model).to(torch.bfloat16)


def generate(model: Any, prompt: Tensor, tokens: int) -> Tensor:
    """Sample so many tokens with transformers' own `generate`."""
    with torch.inference_mode():
        made: Tensor = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )
    return made


def generator_of(model: Any, prompt: Tensor, count: int) -> Work:
    """The sampler of sorl's engine on the same prompt; transformers' where sorl is not importable."""
    if why_not_sorl():
        return partial(generate, model, prompt, count)
    from sorl.agent.engines.hf import TransformersDecoder, sample

    def sample_all() -> None:
        stream = torch.Generator().manual_seed(0)
        decoder = TransformersDecoder(model)
        tokens = prompt.cpu()
        with torch.inference_mode():
            for position in range(count):
                token, _ = sample(decoder.feed(tokens), 1.0, stream, greedy=False, position=position)
                tokens = token.cpu()[:, None]

    return sample_all


def score_plainly(model: Any, episodes: Episodes) -> None:
    """Log-probs of the episodes by all logits at once."""
    with torch.no_grad(), precision(model.device, BFLOAT16):
        plain_log_probs(model, episodes.tokens.to(model.device)).cpu()


def scorer_of(model: Any, episodes: Episodes) -> Work:
    """Our pass for log-probs of the episodes; the plain one where sorl is not importable."""
    if why_not_sorl():
        return partial(score_plainly, model, episodes)
    from sorl.learn.networks import log_probs

    def score_all() -> None:
        with torch.no_grad(), precision(model.device, BFLOAT16):
            log_probs(model, episodes.tokens, where=episodes.mask)

    return score_all


def measure_step(shape: Shape, vocabulary: int, bench: Bench) -> Iterator[Row]:
    """Seconds of a training step with AdamW beside a plain one, its memory, and the clipping bias."""
    sizes = Sizes.of(bench)
    episodes = make_episodes(sizes.rows, sizes.width, vocabulary, is_ragged=False)
    model = shape.build(vocabulary, bench.device)
    parameters = count_parameters(model)
    free_memory(bench.device)
    ours = trainer_of(model, BFLOAT16)
    ours.update(episodes)
    yield {"measured": "memory of a step", "claimed_bytes_a_parameter": 16} | memory_row(
        bench.device, parameters
    )
    plain = PlainTrainer(model, BFLOAT16)  # shares weights and gradients, and has a state of its own
    tokens = episodes.tokens.numel()
    our_step = partial(ours.update, episodes)
    plain_step = partial(plain.update, episodes)
    pairs = alternate(our_step, plain_step, bench.device, bench.repeats)
    yield {
        "measured": "step",
        **pairs.as_row(tokens, "tokens"),
        "seconds": median(pairs.ours),
        "tflops": 6 * parameters * tokens / median(pairs.ours) / 1e12,
    }
    if not why_not_sorl():
        del plain, plain_step
        biased = OurTrainer(model, BFLOAT16, clip_bias_every=1)
        pairs = alternate(partial(biased.update, episodes), our_step, bench.device, bench.repeats)
        what = "step that measures the clipping bias, beside one that does not"
        yield {"measured": what} | pairs.as_row(tokens, "tokens")


def measure_critic(shape: Shape, vocabulary: int, bench: Bench) -> Iterator[Row]:
    """Memory and seconds of a step with a critic; nothing where sorl is not importable."""
    if why_not_sorl():
        return
    sizes = Sizes.of(bench)
    episodes = make_episodes(sizes.rows, sizes.width, vocabulary, is_ragged=False)
    model = shape.build(vocabulary, bench.device)
    free_memory(bench.device)
    ours = OurTrainer(model, BFLOAT16, "ppo")
    ours.update(episodes)
    memory = memory_row(bench.device, count_parameters(model))
    spent = [seconds_of(lambda: ours.update(episodes), bench.device) for _ in range(bench.repeats)]
    yield {
        "measured": "step with a critic",
        "claimed_bytes_a_parameter": 32,
        **memory,
        "seconds": median(spent),
        "ours_tokens_per_s": episodes.tokens.numel() / median(spent),
    }


# ----------------------------------------------------------------------------------------------------
# Part 4: an iteration of GRPO beside TRL's, or beside a loop by hand


def measure_iteration(bench: Bench) -> Iterator[Row]:
    """Sample, take old log-probs, train once: ours beside a plain loop, and beside TRL's trainer."""
    shape = shapes_of(bench)[0]
    vocabulary = trimmed_vocabulary(shape)
    sizes = Sizes.of(bench)
    tokens = sizes.sampled * sizes.written
    ours = iteration_of(shape.build(vocabulary, bench.device), sizes, is_plain=False)
    if not why_not_sorl():
        plain = iteration_of(shape.build(vocabulary, bench.device), sizes, is_plain=True)
        pairs = alternate(ours, plain, bench.device, bench.few_repeats)
        yield {
            "iteration": "sample, old log-probs, one update",
            "baseline": "generate() and a loop by hand",
        } | pairs.as_row(tokens, "tokens")
    if find_spec("trl") is None or find_spec("datasets") is None:
        yield {"trl": "not run: trl or datasets is not installed"}
        return
    theirs = time_trl(shape, vocabulary, bench)
    ours()
    again = [seconds_of(ours, bench.device) for _ in theirs]
    yield {"iteration": "TRL takes no old log-probs", "baseline": "TRL GRPOTrainer"} | Pairs(
        again, theirs
    ).as_row(tokens, "tokens")


def iteration_of(model: Any, sizes: Sizes, is_plain: bool) -> Work:
    """One iteration on random prompts with random advantages; every one samples from a fresh copy in bf16."""
    trainer = PlainTrainer(model, BFLOAT16) if is_plain else trainer_of(model, BFLOAT16)
    vocabulary = model.config.vocab_size
    prompt = torch.randint(1, vocabulary, (sizes.sampled, sizes.prompt), device=model.device)
    width = sizes.prompt + sizes.written
    written = (torch.arange(width) >= sizes.prompt).expand(sizes.sampled, width)
    episodes = replace(
        make_episodes(sizes.sampled, width, vocabulary, is_ragged=False),
        mask=written,
        response=written,
        advantages=torch.where(written, torch.randn(sizes.sampled, 1), 0.0),
    )

    def iterate_plainly() -> None:
        generate(in_bfloat16(model), prompt, sizes.written)
        score_plainly(model, episodes)
        trainer.update(episodes)

    def iterate() -> None:
        generator_of(in_bfloat16(model), prompt, sizes.written)()
        scorer_of(model, episodes)()
        trainer.update(episodes)

    return iterate_plainly if is_plain else iterate


def time_trl(shape: Shape, vocabulary: int, bench: Bench) -> list[float]:
    """Seconds of TRL's iterations of as many prompts and tokens, without the first."""
    datasets: Any = import_module("datasets")
    trl: Any = import_module("trl")
    sizes = Sizes.of(bench)
    tokenizer = word_tokenizer(vocabulary)
    words = [f"w{number}" for number in range(1, sizes.prompt + 1)]
    data = datasets.Dataset.from_list([{"prompt": " ".join(words)}] * (sizes.sampled * 64))
    watch = step_watch(bench.device)
    config = trl.GRPOConfig(
        output_dir=str(bench.folder / "trl"),
        per_device_train_batch_size=sizes.sampled,
        num_generations=max(2, sizes.sampled // 4),
        max_completion_length=sizes.written,
        generation_kwargs={"min_new_tokens": sizes.written},
        max_steps=1 + bench.few_repeats,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=bench.device.type == "cuda",
        use_cpu=bench.device.type == "cpu",
        optim="adamw_torch_fused",
        learning_rate=1e-6,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trl.GRPOTrainer(
        model=shape.build(vocabulary, bench.device),
        reward_funcs=lambda completions, **_: torch.rand(len(completions)).tolist(),
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[watch],
    ).train()
    return list(watch.seconds[1:])


def step_watch(device: torch.device) -> Any:
    """A callback of transformers' trainer that takes the seconds of each step."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        """Seconds from the start of a step to its end."""

        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            """Start the clock."""
            synchronize(device)
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Stop the clock."""
            synchronize(device)
            self.seconds.append(time.perf_counter() - self.began)

    return Watch()


def word_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of made-up words, one a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0} | {f"w{number}": number for number in range(1, vocabulary - 1)}
    words["<eos>"] = vocabulary - 1
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )


# ----------------------------------------------------------------------------------------------------
# Part 5: what the ledger costs


def measure_ledger(bench: Bench) -> Iterator[Row]:
    """A step with `sorl.recording.Ledger` and one without, in turn: all weights and tokens are recorded."""
    from sorl.recording import Clip, Ledger

    shape = shapes_of(bench)[0]
    vocabulary = trimmed_vocabulary(shape)
    sizes = Sizes.of(bench)
    episodes = make_episodes(sizes.rows, sizes.width, vocabulary, is_ragged=False)
    model = shape.build(vocabulary, bench.device)
    trainer = trainer_of(model, BFLOAT16)
    with Ledger(bench.folder / "ledger", experiment="gpu", algorithm="grpo", clip=Clip()) as ledger:
        steps = iter(range(1_000_000))

        def record_step() -> None:
            step = next(steps)
            ledger.rollouts(
                step, episodes.advantages[:, -1], group=torch.arange(sizes.rows) // 2, mask=episodes.mask
            )
            ledger.weights(step, "policy", model.named_parameters())
            made = trainer.update(episodes)
            ledger.update(
                step,
                log_prob=made["log_prob"],
                log_prob_old=episodes.old,
                mask=episodes.mask,
                advantages=episodes.advantages[:, 0],
                grad_norm=made["grad_norm"],
            )
            ledger.end(step)

        plain_step = partial(trainer.update, episodes)
        pairs = alternate(record_step, plain_step, bench.device, bench.repeats)
        yield pairs.as_row(episodes.tokens.numel(), "tokens") | {
            "parameters_millions": count_parameters(model) / 1e6,
            "is_recording": not ledger.dead,
        }


# ----------------------------------------------------------------------------------------------------
# Part 6: a short experiment


def measure_experiment(bench: Bench) -> Iterator[Row]:
    """Success by step of a run on the facts world, as many steps as the time allows."""
    from sorl.learn.loop import Trainer
    from sorl.learn.warmstart import ensure, tokenizer_of
    from sorl.recording.recorder import Recorder

    settings = experiment_settings(bench)
    began = time.perf_counter()
    start = ensure(settings, bench.folder / "cache")
    yield {"start": str(bench.model or "embedded policy"), "seconds": time.perf_counter() - began}
    with Recorder(bench.folder / "run", "gpu", settings) as recorder:
        trainer = Trainer(settings, start, recorder, tokenizer_of(start))
        for row in trainer.steps():
            names = ("success", "seconds_total", "seconds_rollout", "seconds_update", "grad_norm")
            measured = {name: row[name] for name in names if row.get(name) is not None}
            yield {"step": trainer.step, "on": str(trainer.learner.policy.device)} | measured


def experiment_settings(bench: Bench) -> Any:
    """GRPO with AdamW in bf16 from `--model`; the default embedded policy without one."""
    from sorl.spec import RunSettings

    compute = {"device": bench.device.type}
    given: Row = {
        "algorithm": "grpo",
        "iterations": 1_000_000,
        "evaluation": {"every": 0, "episodes": 8 if bench.is_tiny else 128},
        "learn": {"episodes": 16 if bench.is_tiny else 64, "staleness": 0},
        "compute": compute,
        "record": {"batches": {"mb": 0}},
    }
    if bench.is_tiny:
        given |= {"warmstart": {"steps": 2, "batch": 4}, "policy": {"hidden": 16, "layers": 1, "heads": 2}}
    if bench.model is not None:
        optimizer = {"kind": "adamw", "lr": 1e-6, "max_grad_norm": 1.0}
        given |= {
            "model": str(bench.model),
            "world": {"max_turn_tokens": 64},
            "learn": {"episodes": 64, "staleness": 0, "policy": optimizer},
            "compute": compute | {"dtype": BFLOAT16, "micro_batch_tokens": 16_384},
        }
    return RunSettings.model_validate(given)


def join_parts(model: Path, pattern: str, folder: Path) -> Path:
    """A folder with the files of `model` and its weights, whose pieces `pattern` names in order."""
    parts = [Path(name) for name in sorted(glob(pattern))]
    if not parts:
        raise SystemExit(f"--model-parts '{pattern}' names no file")
    joined = folder / "model"
    shutil.copytree(model, joined, ignore=shutil.ignore_patterns(*{part.name for part in parts}))
    with (joined / "model.safetensors").open("wb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    return joined


# ----------------------------------------------------------------------------------------------------

PARTS = (
    Part("machine", 0.03, measure_machine),
    Part("equality", 0.15, measure_equality),
    Part("speed", 0.40, measure_speed),
    Part("iteration", 0.14, measure_iteration),
    Part("ledger", 0.08, measure_ledger),
    Part("experiment", 0.20, measure_experiment),
)


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for gpu.json")
    parser.add_argument("--minutes", type=float, default=6.0, help="all parts together")
    parser.add_argument("--only", default="", help=f"parts, of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes at which only the form can be looked at")
    parser.add_argument("--model", type=Path, help="checkpoint folder that the experiment starts from")
    parser.add_argument("--model-parts", default="", help="glob of the pieces of its model.safetensors")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the parts, print their rows, keep them in OUT/gpu.json."""
    end = time.monotonic()
    options = parse_options(argv)
    end += 60 * options.minutes
    why_not_sorl()  # its import takes seconds, which are no part's
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --device cpu --tiny tries the script out")
    wanted = [name for name in options.only.split(",") if name]
    known: Mapping[str, Part] = {part.name: part for part in PARTS}
    unknown = set(wanted) - set(known)
    if unknown:
        raise SystemExit(f"--only: no part {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out / "gpu.json")
    with TemporaryDirectory(prefix="sorl-gpu-") as folder:
        model = options.model
        if model is not None and options.model_parts:
            model = join_parts(model, options.model_parts, Path(folder))
        device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
        bench = Bench(device, options.tiny, Path(folder), model)
        run_parts([known[name] for name in wanted] or list(PARTS), bench, report, end)
    print(f"\n{report.file}", flush=True)


if __name__ == "__main__":
    main()
