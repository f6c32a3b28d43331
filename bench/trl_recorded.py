"""A real GRPOTrainer on a multi-turn tool task, with and without the recorder; `make bench-record` drives it.

Runs in TRL's own environment (constraints-trl.txt) with this project's core on PYTHONPATH. By hand:

    PYTHONPATH=. .venv-trl/bin/python bench/trl_recorded.py runs --iterations 30 --output recorded.json

The task: look up the value of a key with a tool, twice at most, and answer with it. The model is a tiny
Qwen2, taught the format by imitation. With `--truth FILE.npz` the tensors of every micro-batch are kept as
the trainer saw them, to hold the ledger against. Without `--record` the same is trained unrecorded: the
weights must come out the same.

    ... bench/trl_recorded.py runs --collapse                 # it learns, then collapses
    ... bench/trl_recorded.py runs --collapse --guard 1e-3    # the same, rolled back at the fall
    ... bench/trl_recorded.py runs --kill 10                  # each killed ten times, with a plain loop
    ... bench/trl_recorded.py runs --pairs 6                  # what recording costs
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# A learning rate that grows until four epochs on each batch are too many; the run is taught well enough to
# fall far.
COLLAPSE = {
    "experiment": "collapse",
    "iterations": 24,
    "completions": 64,
    "per_generation": 4,
    "epochs": 4,
    "lr": 4e-3,
    "warmup": 1.0,
    "beta": 0.0,
    "taught": 400,
    "skill": 0.8,
}
BLOCK = 4  # batches of rollouts
KEYS = [f"k{i}" for i in range(8)]
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


def value_of(key: str) -> str:
    """The value that the tool answers with."""
    return f"v{(KEYS.index(key) * 5 + 3) % 8}"


def look_up(key: str) -> str:
    """Look up a key.

    Args:
        key: The key.

    Returns:
        Its value.
    """
    return value_of(key) if key in KEYS else "unknown key"


def call_of(key: str) -> str:
    """A tool call, as the template writes it."""
    return f'<tool_call>\n{{"name": "look_up", "arguments": {{"key": "{key}"}}}}\n</tool_call>'


def question(key: str) -> list[dict[str, str]]:
    """The prompt."""
    return [{"role": "user", "content": f"value of {key} ?"}]


def tokenizer_of() -> PreTrainedTokenizerFast:
    """A small byte-level BPE in which keys, values and whole tool calls are single tokens."""
    template = TEMPLATE.read_text(encoding="utf-8")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([template] * 4, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.add_tokens([*KEYS, *map(value_of, KEYS), *map(call_of, KEYS)])
    made.chat_template = template
    return made


def taught(tokenizer: PreTrainedTokenizerFast, steps: int, skill: float, seed: int, folder: Path) -> Any:
    """A tiny Qwen2 that has learned the format from scripted conversations; a share `skill` asks for the
    right key.

    It is kept in `folder`, from where the trainer reads its reference.
    """
    if (folder / "config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config)
    luck = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = []
        for _ in range(16):
            key = luck.choice(KEYS)
            asked = key if luck.random() < skill else luck.choice(KEYS)
            call = {"type": "function", "function": {"name": "look_up", "arguments": {"key": asked}}}
            again = [asked] if luck.random() < 0.2 + skill else [asked, luck.choice(KEYS)]
            messages: list[dict[str, Any]] = question(key)
            for one in again:
                call = {"type": "function", "function": {"name": "look_up", "arguments": {"key": one}}}
                messages += [
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "name": "look_up", "content": value_of(one)},
                ]
            said = (
                value_of(again[-1])
                if luck.random() < 0.3 + skill
                else luck.choice([value_of(k) for k in KEYS])
            )
            messages.append({"role": "assistant", "content": said})
            prompt = tokenizer.apply_chat_template(
                question(key), tools=[look_up], tokenize=True, return_dict=False, add_generation_prompt=True
            )
            ids = tokenizer.apply_chat_template(messages, tools=[look_up], tokenize=True, return_dict=False)
            rows.append((len(prompt), ids))
        width = max(len(ids) for _, ids in rows)
        tokens = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for _, ids in rows])
        labels = torch.tensor([[-100] * n + ids[n:] + [-100] * (width - len(ids)) for n, ids in rows])
        loss = model(input_ids=tokens, attention_mask=tokens != tokenizer.pad_token_id, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def right(completions: list[Any], key: list[str], **_: Any) -> list[float]:
    """1 where the last message is the value."""
    return [
        float(str(c[-1].get("content", "")).strip() == value_of(k))
        for c, k in zip(completions, key, strict=True)
    ]


class Alternating(TrainerCallback):
    """Records BLOCK batches of rollouts and then as many not, in turn; keeps the seconds from each to the
    next.
    """

    def __init__(self, ledger: Any, updates: int, first: bool) -> None:
        self.ledger = ledger
        self.updates = updates
        self.first = first
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock where a batch of rollouts begins, and switch the recorder on or off."""
        step, update = divmod(state.global_step, self.updates)
        if update == 0:
            now = time.perf_counter()
            self.seconds += [now - self._began] if step else []
            self._began = now
            # what `record` wraps looks at nothing then
            self.ledger.dead = (step // BLOCK % 2 == 0) != self.first


class Watched(TrainerCallback):
    """Wall time of every optimizer step, without what comes between them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop it."""
        self.seconds.append(time.perf_counter() - self._began)


def widen(trainer: Any) -> None:
    """Let the loss be computed in float64: TRL's fused head answers in float32, whatever the model is in."""
    passes = trainer._get_per_token_logps_and_entropies

    def wide(*args: Any, **kwargs: Any) -> Any:
        log_prob, *others = passes(*args, **kwargs)
        return log_prob.double(), *others

    trainer._get_per_token_logps_and_entropies = wide


def keep_truth(trainer: Any, kept: list[dict[str, np.ndarray]], told: list[dict[str, Any]]) -> None:
    """Keep what every batch of rollouts and every micro-batch of the loss is made of."""
    generate = trainer._generate_and_score_completions
    score = trainer._calculate_rewards
    passes = trainer._get_per_token_logps_and_entropies
    loss = trainer._compute_loss
    last: list[Any] = []

    def watched_score(inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        out = score(inputs, prompts, completions, ids)
        told.append(
            {"inputs": inputs, "prompts": prompts, "completions": completions, "rewards": out.tolist()}
        )
        return out

    def watched_generate(inputs: Any) -> Any:
        out = generate(inputs)
        told[-1]["out"] = {name: x.tolist() for name, x in out.items()}
        return out

    def watched_passes(*args: Any, **kwargs: Any) -> Any:
        last[:] = [passes(*args, **kwargs)]
        return last[0]

    def watched_loss(model: Any, inputs: dict[str, Any]) -> Any:
        out = loss(model, inputs)
        ours = (getattr(trainer, "recorded", None) or {"terms": {}})["terms"]
        names = (
            "completion_ids",
            "completion_mask",
            "tool_mask",
            "advantages",
            "old_per_token_logps",
            "ref_per_token_logps",
            "sorl_trajectory",
        )
        found = {name: inputs[name].numpy().copy() for name in names if name in inputs}
        found |= {
            "log_prob": last[0][0].detach().numpy().copy(),
            "entropy": last[0][1].detach().numpy().copy(),
        }
        found |= {f"terms.{name}": x.numpy().copy() for name, x in ours.items()}
        found |= {"step": np.array(trainer.state.global_step), "loss": out.detach().numpy().copy()}
        last[0][0].register_hook(lambda gradient: found.update(gradient=gradient.numpy().copy()))
        kept.append(found)
        return out

    trainer._generate_and_score_completions = watched_generate
    trainer._calculate_rewards = watched_score
    trainer._get_per_token_logps_and_entropies = watched_passes
    trainer._compute_loss = watched_loss


PLAIN = """
import sys
from examples import plain_loop

class Told(plain_loop.Ledger):
    def end(self, step):
        super().end(step)
        print("ended", step, flush=True)

plain_loop.Ledger = Told
plain_loop.main(sys.argv[1], 10**6)
"""


class Trainer:
    """A trainer in a process of its own, and when it ended each of its steps."""

    def __init__(self, command: list[str], updates: int) -> None:
        self.ended: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, "-u", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=self._read, args=(updates,), daemon=True).start()

    def _read(self, updates: int) -> None:
        seen = 0
        for line in self.process.stdout or ():
            seen += "grad_norm" in line or line.startswith("ended")
            self.ended += [time.monotonic()] * (seen // updates - len(self.ended))


def killed(runs: Path, times: int) -> None:
    """Kill two trainers that write into one runs folder, and look for what was doubled or lost."""
    from sorl.store.segments import held

    recorded = [str(Path(__file__)), str(runs), "--experiment", "killed", "--iterations", "1000"]
    recorded += ["--epochs", "1", "--completions", "16", "--group", "4"]
    # by experiment, with updates a step
    commands = {"killed": (recorded, 4), "plain": (["-c", PLAIN, str(runs)], 1)}
    worst = dict.fromkeys(commands, 0.0)
    rows = 0
    doubled = 0
    for attempt in range(times):
        before = set(runs.glob("*/*"))
        running = {name: Trainer(*how) for name, how in commands.items()}
        while any(len(trainer.ended) < 2 + attempt % 4 for trainer in running.values()):
            time.sleep(0.1)
        for name, trainer in running.items():
            at = time.monotonic()
            trainer.process.kill()
            trainer.process.wait()
            (folder,) = set(runs.glob(f"{name}/*")) - before
            while held(folder):  # the recorder measures what it was told
                time.sleep(0.1)
            kept = {
                kind: keys_of(folder, kind)
                for kind in ("step", "minibatch", "trajectory", "turn", "turn_step")
            }
            rows += sum(map(len, kept.values()))
            doubled += sum(len(keys) - len(set(keys)) for keys in kept.values())
            worst[name] = max([worst[name], *(at - ended for ended in trainer.ended[len(kept["step"]) :])])
        print(
            json.dumps({"killed": attempt + 1, "rows": rows, "doubled": doubled, "seconds_lost": worst}),
            flush=True,
        )


def keys_of(folder: Path, name: str) -> list[tuple[Any, ...]]:
    """Primary keys of the rows of a table that a run wrote."""
    import pyarrow.parquet as pq

    from sorl.spec import table

    files = sorted((folder / "segments" / name).glob("[0-9]*.parquet"))
    return [
        tuple(r.values()) for f in files for r in pq.read_table(f, columns=list(table(name).key)).to_pylist()
    ]


def paired(runs: Path, pairs: int) -> None:
    """Train the same run twice, recorded in one where it is not in the other; the ratio of what the steps
    took.

    A process is some percent slower or faster than another for as long as it lives. Both record half of their
    steps, so that this cancels. The first step of each block is left out: the recorder still measures the
    last block then.
    """
    ratios = []
    for pair in range(pairs):
        told = []
        for half in ("first", "second"):
            output = runs / f"{half}.json"
            more = ["--alternate", half, "--iterations", str(12 * BLOCK + 1), "--output", str(output)]
            command = [sys.executable, str(Path(__file__)), str(runs), *more]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            told.append(json.loads(output.read_text()))
        assert told[0]["weights"] == told[1]["weights"]
        steps = np.log([one["alternating"] for one in told]).reshape(2, 6, 2, BLOCK)[..., 1:]
        # who records: the first in even blocks
        first = steps[0] - steps[1]
        second = steps[1] - steps[0]
        ratios += list((first[:, 0] + second[:, 1]).mean(-1) / 2)  # of two blocks each
        luck = np.random.default_rng(0).choice(ratios, (10_000, len(ratios))).mean(1)
        low, high = np.exp(np.quantile(luck, [0.025, 0.975]))
        words = f"{np.exp(np.mean(ratios)):.4f} (95 %: {low:.4f} to {high:.4f})"
        print(
            f"wall, recorded / not: {words} of {len(ratios)} times {2 * BLOCK} steps, {pair + 1} pairs",
            flush=True,
        )


def diagnosed(runs: Path, run: str) -> None:
    """Say what `sorl diagnose` reads in the ledger, and how it ranks the turns in the step of the first
    cause.
    """
    sorl = [
        sys.executable,
        "-c",
        "from sorl.cli.main import main; main()",
        "--runs",
        str(runs),
        "diagnose",
        run,
    ]
    found = json.loads(subprocess.run([*sorl, "--format", "json"], check=True, capture_output=True).stdout)
    subprocess.run(sorl, check=True)
    for finding in found[0]["findings"][:1]:
        print(flush=True)
        subprocess.run([*sorl, "--step", str(finding["evidence"][0]["step"])], check=True)


def main(argv: list[str] | None = None) -> None:
    """Train, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--experiment", default="trl")
    parser.add_argument("--iterations", type=int, default=30, help="batches of rollouts")
    parser.add_argument("--completions", type=int, default=32, help="of a batch of rollouts")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--per-generation", type=int, default=4, help="micro-batches of a batch of rollouts")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument(
        "--warmup", type=float, default=0.0, help="share of the run in which the rate grows to --lr"
    )
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--loss", default="grpo")
    parser.add_argument("--level", default="token")
    parser.add_argument(
        "--ours", type=json.loads, help='a loss of ours in place of TRL\'s: "st-ppo" or {"base": ...}'
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--taught", type=int, default=250, help="steps of imitation")
    parser.add_argument(
        "--skill", type=float, default=0.5, help="of the scripts: how often the right key is asked for"
    )
    parser.add_argument("--model", type=Path, help="where the taught model is kept; default: the runs folder")
    parser.add_argument("--double", action="store_true", help="losses and their gradients in float64")
    parser.add_argument("--collapse", action="store_true", help="settings under which the run collapses")
    parser.add_argument(
        "--kill", type=int, default=0, help="kill -9 it, and a plain loop next to it, so many times"
    )
    parser.add_argument(
        "--alternate", choices=("first", "second"), help="the half of the steps that is recorded"
    )
    parser.add_argument("--pairs", type=int, default=0, help="pairs of runs with and without the recorder")
    parser.add_argument("--guard", type=float, help="roll back at a fall, and go on with this learning rate")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--output", type=Path)
    if parser.parse_known_args(argv)[0].collapse:
        parser.set_defaults(**COLLAPSE)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.kill:
        killed(options.runs, options.kill)
        return
    if options.pairs:
        paired(options.runs, options.pairs)
        return
    tokenizer = tokenizer_of()
    model = taught(
        tokenizer,
        options.taught,
        options.skill,
        options.seed,
        options.model or options.runs / f".model-{options.taught}-{options.skill:g}",
    )
    luck = random.Random(options.seed)
    keys = [luck.choice(KEYS) for _ in range(4096)]
    updates = options.per_generation * options.epochs // options.accumulate
    config = GRPOConfig(
        output_dir=str(options.runs / "trl"),
        per_device_train_batch_size=options.completions // options.per_generation,
        steps_per_generation=options.per_generation,
        gradient_accumulation_steps=options.accumulate,
        num_generations=options.group,
        num_iterations=options.epochs,
        max_completion_length=64,
        temperature=1.0,
        beta=options.beta,
        use_bias_correction_kl=False,
        epsilon=0.2,
        loss_type=options.loss,
        importance_sampling_level=options.level,
        learning_rate=options.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=round(options.warmup * options.iterations * updates),
        max_grad_norm=1.0,
        max_steps=options.iterations * updates,
        use_cpu=True,
        activation_checkpointing=False,
        bf16=False,
        seed=options.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        max_tool_calling_iterations=2,
    )
    watched = Watched()
    kind = GRPOTrainer
    if options.ours:
        from sorl.trainers.trl_loss import TrlLoss

        kind = type("Mine", (TrlLoss, GRPOTrainer), {"loss": options.ours})
    trainer = kind(
        model=model,
        reward_funcs=right,
        args=config,
        processing_class=tokenizer,
        tools=[look_up],
        callbacks=[watched],
        train_dataset=Dataset.from_list(
            [{"prompt": question(k), "key": k, "answer": value_of(k)} for k in keys]
        ),
    )
    kept: list[dict[str, np.ndarray]] = []
    told: list[dict[str, Any]] = []
    if options.double:
        widen(trainer)
    if options.truth:
        keep_truth(trainer, kept, told)
    ledger = None
    if options.record:
        from sorl.trainers.trl import record

        ledger = record(trainer, options.runs, experiment=options.experiment)
    watching = None
    if options.guard is not None:
        from sorl.trainers.trl_guard import guard

        watching = guard(trainer, changes=[{"learning_rate": options.guard}], every=updates)
    alternating = Alternating(ledger, updates, options.alternate == "first") if options.alternate else None
    if alternating:
        trainer.add_callback(alternating)
    trainer.train()
    report = {
        "step_seconds": watched.seconds,
        "alternating": alternating.seconds if alternating else [],
        "log": trainer.state.log_history,
        "weights": (
            hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
        ),
        "run": str(ledger.folder) if ledger else None,
        "rollbacks": [back._asdict() for back in watching.rollbacks] if watching else [],
        "updates": updates,
        "versions": {
            name: __import__(name).__version__ for name in ("trl", "torch", "transformers", "accelerate")
        },
    }
    if options.truth:
        log = json.dumps({"log": trainer.state.log_history, "rollouts": told, "versions": report["versions"]})
        ranks = trainer.accelerator.num_processes
        file = (
            options.truth.with_suffix(f".{trainer.accelerator.process_index}.npz")
            if ranks > 1
            else options.truth
        )
        np.savez_compressed(
            file,
            log=np.array(log),
            **{f"{i}.{name}": x for i, found in enumerate(kept) for name, x in found.items()},
        )
    text = json.dumps(report)
    if options.output:
        options.output.write_text(text)
    print(json.dumps({k: v for k, v in report.items() if k not in ("log", "step_seconds")}))
    if options.collapse and ledger:
        diagnosed(options.runs, ledger.run_id)


if __name__ == "__main__":
    main()
