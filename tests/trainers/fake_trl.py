"""What a real GRPOTrainer did, played again to whatever wraps its methods: recorded by
`bench/trl_recorded.py`.

The batches of rollouts, the tensors of every micro-batch and the lines of its log are TRL's own
(trl_1_16.npz).
"""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

RECORDED = Path(__file__).with_name("trl_1_16.npz")


def micro_batches(file, run=""):
    """The fields of each micro-batch in a file of arrays that are called `run`number.field."""
    found = defaultdict(dict)
    for key in (key for key in file.files if key.startswith(run) and "." in key):
        number, _, field = key.removeprefix(run).partition(".")
        found[int(number)][field] = file[key]
    return [found[i] for i in sorted(found)]


@dataclass
class Args:
    output_dir: str = ""
    learning_rate: float = 1e-6
    max_grad_norm: float = 1.0
    num_iterations: int = 1
    steps_per_generation: int = 1
    gradient_accumulation_steps: int = 1
    max_steps: int = -1
    seed: int = 42
    delta: float | None = None
    use_bias_correction_kl: bool = True

    def to_dict(self):
        return asdict(self)


class Words:
    """The tokenizer, as far as it is asked."""

    pad_token_id = 0

    def convert_ids_to_tokens(self, ids):
        return [f"<{i}>" for i in ids]


class FakeGRPO:
    """A GRPOTrainer that trains by reading what one did; `change` may alter a micro-batch before the loss
    sees it.
    """

    def __init__(self, accumulate=1, change=lambda inputs: inputs):
        file = np.load(RECORDED)
        self.told = json.loads(str(file["log"]))
        self.log = [line for line in self.told["log"] if "grad_norm" in line]
        self.micro = micro_batches(file)
        steps = len(self.micro) // accumulate
        self.args = Args("out", 1e-3, 1.0, 2, 4, accumulate, steps, 0, use_bias_correction_kl=False)
        self.num_iterations = 2
        self.num_generations = 4
        self.change = change
        self.loss_type = "grpo"
        self.importance_sampling_level = "token"
        self.scale_rewards = "group"
        self.epsilon_low = self.epsilon_high = 0.2
        self.beta = 0.01
        self.temperature = 1.0
        self.max_tool_calling_iterations = 2
        self.processing_class = self._tokenizer = Words()
        self.eos_token_ids = [int(self.told["rollouts"][0]["out"]["completion_ids"][0][1])]
        self.reward_func_names = ["right"]
        self.reward_weights = torch.ones(1)
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.model = SimpleNamespace(training=True)
        self.state = SimpleNamespace(global_step=0)
        self.callbacks = []
        self._step = 0
        self.tools = [print]
        self._metrics = {"train": defaultdict(list)}

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return torch.tensor(self.told["rollouts"][self._step // 8]["rewards"])

    def _generate_and_score_completions(self, inputs):
        told = self.told["rollouts"][self._step // 8]
        out = {name: torch.tensor(x) for name, x in told["out"].items()}
        ids = [
            row[m.bool()].tolist()
            for row, m in zip(out["completion_ids"], out["completion_mask"], strict=True)
        ]
        self._calculate_rewards(told["inputs"], told["prompts"], told["completions"], ids)
        return out

    def _get_per_token_logps_and_entropies(self, model, input_ids):
        micro = self.micro[self._step]
        return torch.tensor(micro["log_prob"], requires_grad=True), torch.tensor(micro["entropy"]), None

    def _compute_loss(self, model, inputs):
        micro = self.micro[self._step]
        log_prob, _, _ = self._get_per_token_logps_and_entropies(model, inputs["completion_ids"])
        if self.args.gradient_accumulation_steps == 1:  # as the log has it, a line an update
            name = "clip_ratio/region_mean"
            self._metrics["train"][name].append(self.log[self._step % len(self.log)][name])
        return (log_prob * torch.tensor(micro["gradient"])).sum()

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, *args, learning_rate=None):
        pass

    def train(self):
        rows = {}
        for micro in self.micro:
            if self._step % 8 == 0:
                rows = self._generate_and_score_completions(self.told["rollouts"][self._step // 8]["inputs"])
            # the rows that TRL's shuffle put into this micro-batch
            index = torch.tensor(micro["sorl_trajectory"])
            inputs = {name: x[index] for name, x in rows.items() if x.dim()}
            self._compute_loss(self.model, self.change(inputs)).backward()
            self._step += 1
            if self._step % self.args.gradient_accumulation_steps == 0:
                self.state.global_step += 1
                norm = self.log[min(self.state.global_step, len(self.log)) - 1]["grad_norm"]
                self._maybe_log_save_evaluate(0.0, norm, self.model, learning_rate=1e-3)
        for callback in self.callbacks:
            callback.on_train_end(self.args, self.state, None)
