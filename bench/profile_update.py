"""Where an update's time goes, and what two tempting shortcuts gain: `python bench/profile_update.py
RUN_FOLDER`.

RUN_FOLDER is a finished run of this project (for example runs/quickstart/ppo-s3-...). Prints milliseconds of
a whole update, of a policy pass (forward and backward) three ways, of a critic pass, and the operators by
their own time.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from sorl.learn.loop import Trainer
from sorl.learn.networks import log_probs
from sorl.learn.warmstart import ensure
from sorl.recording.recorder import Recorder
from sorl.spec import RunSettings


def milliseconds(work: Callable[[], object], rounds: int = 20) -> float:
    """Mean duration of `work` after one warm-up."""
    work()
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    return 1000 * (time.perf_counter() - began) / rounds


def main(run: Path) -> None:
    """Measure on the first minibatch that this run would train on."""
    settings = RunSettings.model_validate(tomllib.loads((run / "config.toml").read_text()))
    start = ensure(settings, run.parents[1] / ".cache")
    tokenizer = AutoTokenizer.from_pretrained(start)
    trainer = Trainer(settings, start, Recorder(None, "", settings), tokenizer)
    batch = trainer._advantages(trainer._values(trainer._old_log_probs(trainer._roll_out()[1])))
    rows = len(batch.tokens) // settings.learn.minibatches
    batch = batch.rows(torch.arange(rows)).trimmed()
    policy = trainer.learner.policy
    critic = trainer.learner.critic
    real = batch.tokens != tokenizer.pad_token_id
    print(
        f"{rows} sequences padded to {batch.tokens.shape[1]}: {int(real.sum())} tokens,"
        f" {int(batch.mask.sum())} trained"
    )

    def whole() -> None:
        log_probs(policy, batch.tokens)[0][batch.mask].sum().backward()

    where, position = batch.mask[:, 1:].nonzero(as_tuple=True)

    def trained_only() -> None:
        head = policy.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda module, inputs: (inputs[0][where, position],))
        try:
            logits = policy(input_ids=batch.tokens[:, :-1], use_cache=False).logits.float()
        finally:
            hook.remove()
        chosen = batch.tokens[:, 1:][where, position].unsqueeze(-1)
        torch.log_softmax(logits, -1).gather(-1, chosen).sum().backward()

    by_length = batch.rows(real.sum(1).argsort())
    halves = [by_length.rows(part).trimmed() for part in torch.arange(rows).split(rows // 2)]

    def sorted_halves() -> None:
        for half in halves:
            log_probs(policy, half.tokens)[0][half.mask].sum().backward()

    measured: dict[str, Callable[[], object]] = {
        "update": lambda: trainer.learner.update(batch, 0, 0),
        "policy pass": whole,
        "policy pass, logits at trained tokens only": trained_only,
        "policy pass, two halves sorted by length": sorted_halves,
    }
    if critic is not None:
        measured["critic pass"] = lambda: critic(batch.tokens).sum().backward()
    for name, work in measured.items():
        print(f"{name:44}{milliseconds(work):7.1f} ms")
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(5):
            trainer.learner.update(batch, 0, 0)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
