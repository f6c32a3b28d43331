"""Settings in the text that holds the metrics."""

import json
import pprint
from pathlib import Path

import pytest

from sorl.importing.logs import sources
from sorl.spec import InputError

VERL = {
    "actor_rollout_ref": {
        "actor": {"clip_ratio": 0.3, "optim": {"lr": 0.5, "betas": [0.9, 0.95]}}
        | {f"other_{number}": number for number in range(500)},
        "rollout": {"n": 5},
    },
    "trainer": {"logger": ["console"], "project": None},
}
YAML = "actor_rollout_ref:\n  actor:\n    clip_ratio: 0.3\n    optim:\n      lr: 0.5\n  rollout:\n    n: 5"
COMMAND = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.lr=0.5 \\\n  rollout.n=5"
TRL = "learning_rate=0.5, num_generations=5, report_to=['wandb'], optim=<OptimizerNames.ADAMW: 'adamw'>"

PRINTED = {
    "verl": pprint.pformat(VERL),
    "verl by Ray": "\n".join(
        f"\x1b[36m(TaskRunner pid=7)\x1b[0m {x}" for x in pprint.pformat(VERL).split("\n")
    ),
    "verl as JSON": json.dumps(VERL, indent=2),
    "verl as YAML": YAML,
    "verl's command": COMMAND,
    "GRPOConfig": f"GRPOConfig({TRL})",
    "GRPOConfig, a line each": "args: GRPOConfig(\n" + TRL.replace(", ", ",\n") + ",\n)",
    "code": "args = GRPOConfig(\n    learning_rate = 0.5,\n    num_generations = 5, # more is better\n)",
    "Namespace": "Namespace(actor_learning_rate=0.5, n_samples_per_prompt=5)",
    "dictionary": "{'learning_rate': 0.5, 'num_generations': 5, 'output_dir': 'x'}",
    "flags": "accelerate launch train.py --learning_rate 0.5 \\\n  --num-generations=5",
    "list": "  lr .................. 0.5\n  n_samples_per_prompt ... 5\n  --- end ---",
}


@pytest.mark.parametrize("form", PRINTED)
def test_settings_are_read_in_each_form(form: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    metrics = "\n".join(f"{{'loss': 0.1, 'reward': {step / 20}, 'kl': 0.0}}" for step in range(20))
    path.write_text(f"{PRINTED[form]}\n{metrics}\n")
    (run,) = sources(path)[0].runs()
    assert len(run.steps) == 20
    assert run.settings["learn.policy.lr"] == 0.5
    assert run.settings["learn.group_size"] == 5
    assert run.reading.options["learn.policy.lr"][1] == 0.5


def test_a_block_of_metrics_with_a_learning_rate_is_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    blocks = (f"Step {n}\nResults:\n  reward: {n / 20}\n  learning_rate: 0.5\n  kl: 0.1\n" for n in range(20))
    path.write_text("\n".join(blocks))
    (run,) = sources(path)[0].runs()
    assert run.settings == {}
    assert run.read["minibatch.lr"] == "learning_rate"


def test_lines_with_open_braces_do_not_cost_much(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("{'reward': 0.5, 'a': {\n" * 2000)
    with pytest.raises(InputError, match="no record of metrics"):
        list(sources(path)[0].runs())
