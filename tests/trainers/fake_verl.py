"""What verl's TrainingWorker did, played again to the plugin: recorded by `bench/verl_recorded.py`.

The tensors of every micro-batch, their gradients and the logged metrics are verl's own (verl_0_9_1.npz).
"""

import json
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from tests.trainers.fake_trl import micro_batches

RECORDED = Path(__file__).with_name("verl_0_9_1.npz")
PADDED = ("response_mask", "old_log_probs", "advantages", "rollout_log_probs", "ref_log_prob")


def recorded(*files):
    """The micro-batches of each file (a file per rank), and what the first one says of them."""
    loaded = [np.load(name) for name in files]
    ranks = [
        [{k: torch.tensor(x) for k, x in micro.items()} for micro in micro_batches(file)] for file in loaded
    ]
    told = {name: json.loads(str(loaded[0][name])) for name in ("log", "rows") if name in loaded[0].files}
    return ranks, told["log"], told.get("rows")


class Rows:
    """A TensorDict, as far as it is asked: a field is a tensor per row, an entry per row, or one value for
    all.
    """

    def __init__(self, rows, told=()):
        self.rows = rows
        self.told = dict(told)

    def __len__(self):
        return len(next(iter(self.rows.values())))

    def get(self, name, default=None):
        if name not in self.rows:
            return self.told.get(name, default)
        found = self.rows[name]
        if isinstance(found, torch.Tensor) or not isinstance(found[0], torch.Tensor):
            return found
        return torch.nested.as_nested_tensor(found, layout=torch.jagged)

    def __getitem__(self, name):
        return self.get(name)

    def __setitem__(self, name, value):
        self.rows[name] = value

    def clone(self, recurse=True):
        return Rows(dict(self.rows), self.told)

    def at(self, index):
        index = [int(i) for i in index]
        pick = {
            k: x[index] if isinstance(x, torch.Tensor) else [x[i] for i in index]
            for k, x in self.rows.items()
        }
        return Rows(pick, self.told)


class Config(dict):
    """A configuration of verl: a mapping with attributes."""

    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)


def actor(**changed):
    options = {
        "policy_loss": Config(loss_mode="sorl:vanilla"),
        "loss_scale_factor": None,
        "use_kl_loss": False,
        "kl_loss_coef": 0.001,
        "use_dynamic_bsz": False,
        "ppo_epochs": 2,
        "data_loader_seed": 42,
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.25,
        "clip_ratio_c": 3.0,
        "loss_agg_mode": "token-mean",
        "global_batch_info": {"dp_size": 1},
    }
    return Config(options | changed)


class Engine:
    """The engine of one rank, that trains by reading what verl's did."""

    def __init__(self, micro):
        self.micro = micro
        self.place = 0
        self.forwards = 0
        self.optimizer_config = SimpleNamespace(lr=3e-3, clip_grad=1.0, total_training_steps=2)
        words = SimpleNamespace(convert_ids_to_tokens=lambda ids: [f"w{i}" for i in ids])
        self.model_config = SimpleNamespace(tokenizer=words)
        self.lr_scheduler = SimpleNamespace(get_last_lr=lambda: [3e-3])
        self.norms = []
        self.gradients = []

    def is_mp_src_rank_with_outputs(self):
        return True

    def get_data_parallel_group(self):
        return None

    def get_data_parallel_size(self):
        return 1

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        start = 0
        metrics = defaultdict(list)
        for i, micro in enumerate(self.micro[self.place : self.place + 2]):
            part = data.at(range(start, start + len(micro["row"])))
            start += len(micro["row"])
            log_prob = micro["log_prob"].clone().requires_grad_(not forward_only)
            self.now = self.micro[self.place + i]
            made = {"log_probs": log_prob, "entropy": micro["entropy"]}
            loss, told = loss_function(model_output=made, data=part, dp_group=None)
            if forward_only:
                self.forwards += 1
                continue
            loss.backward()
            self.gradients.append(log_prob.grad)
            for name, value in told.items():
                metrics[name].append(value)
        if not forward_only:
            self.place += 2
        return {"metrics": dict(metrics)}

    def train_batch(self, data, loss_function):
        out = self.forward_backward_batch(data, loss_function)
        out["metrics"]["grad_norm"] = self.norms[self.place // 2 - 1]
        return out


class FakeVerl:
    """verl's modules that the plugin imports, in `sys.modules` for as long as `patch` (pytest's) lives."""

    def __init__(self, patch):
        self.losses = {}
        (ranks, self.told, self.sampled) = recorded(RECORDED)
        self.micro = ranks[0]
        self.config = type("ActorConfig", (Config,), {"__post_init__": lambda self: None})
        self.engine = type("BaseEngine", (Engine,), {"train_batch": Engine.train_batch})
        self.losses["vanilla"] = self.vanilla
        modules = {
            "verl.trainer.ppo.core_algos": {
                "register_policy_loss": lambda name: lambda loss: self.losses.__setitem__(name, loss),
                "get_policy_loss_fn": self.losses.__getitem__,
            },
            "verl.workers.config": {"ActorConfig": self.config},
            "verl.workers.engine.base": {"BaseEngine": self.engine},
            "verl.workers.utils.padding": {"no_padding_2_padding": lambda values, data: values},
            "verl.utils.tensordict_utils": {"make_iterator": self.iterate},
        }
        for name in modules:
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                patch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(parts[i - 1]))
        for name, content in modules.items():
            vars(sys.modules[name]).update(content)
            above, _, last = name.rpartition(".")
            setattr(sys.modules[above], last, sys.modules[name])
        self.tensordict_utils = sys.modules["verl.utils.tensordict_utils"]

    def vanilla(self, log_prob, **_):
        """verl's own loss, by its gradient, and the clip fraction that it logged of the update."""
        step, update = divmod(self.worker.place // 2, 4)
        logged = self.told["log"][step]["actor/pg_clipfrac"][update]
        return (log_prob * self.worker.now["gradient"]).sum(), {"actor/pg_clipfrac": logged}

    def iterate(self, data, mini_batch_size, epochs, **_):
        """The mini-batches in the order in which verl shuffled them."""
        for update in range(4):
            micro = self.micro[self.worker.place : self.worker.place + 2]
            yield data.at(torch.cat([m["row"] for m in micro]))
            assert self.worker.place % 8 == 2 * (update + 1) % 8

    def sample(self, step):
        """The rows of a step."""
        rows = {
            k: [torch.tensor(x) if isinstance(x, list) else x for x in xs]
            for k, xs in self.sampled[step].items()
        }
        rows |= {name: [None] * 16 for name in PADDED[1:]} | {"loss_mask": rows["response_mask"]}
        for micro in self.micro[8 * step : 8 * step + 4]:  # the first epoch has every row once
            for place, row in enumerate(micro["row"]):
                for name in PADDED[1:]:
                    rows[name][row] = micro[name][place, : len(rows["responses"][row])]
        return Rows(rows, {"micro_batch_size_per_gpu": 4})

    def ppo_loss(self, model_output, data, dp_group, config):
        """verl's loss function around the registered loss."""
        padded = {n: data[n].to_padded_tensor(0) for n in ("old_log_probs", "advantages", "response_mask")}
        loss, told = self.losses[config.policy_loss.loss_mode](
            old_log_prob=padded["old_log_probs"],
            log_prob=model_output["log_probs"],
            config=config,
            advantages=padded["advantages"],
            response_mask=padded["response_mask"].bool(),
            loss_agg_mode="token-mean",
        )
        return loss, told | {"actor/pg_loss": SimpleNamespace(values=[float(self.worker.now["loss"])])}

    def train(self, config, change=lambda rows: rows):
        """Two steps of TrainingWorker.train_mini_batch, each of two epochs of two mini-batches of two
        micro-batches.
        """
        self.config.__post_init__(config)
        self.worker = self.engine(self.micro)
        self.worker.norms = [norm for line in self.told["log"] for norm in line["grad_norm"]]
        loss_function = partial(self.ppo_loss, config=config)
        for step in range(2):
            for batch in self.tensordict_utils.make_iterator(
                change(self.sample(step)), mini_batch_size=8, epochs=2
            ):
                self.worker.train_batch(batch, loss_function)
        return self.worker
