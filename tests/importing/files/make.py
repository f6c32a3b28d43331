"""Write the logs in this folder, each by its own tool: `python make.py TOOL`, in an environment with that
tool.

    tensorboard  tensorboardX 2.6.5 (as transformers and torch write) and tensorboard 2.21.0, in one folder
    wandb        wandb 0.31.0            swanlab  swanlab 0.10.3           trackio  trackio 0.43.0
    mlflow       mlflow 3.17.2, a database and a folder
    aim          aim 3.29.1, then `aim storage reindex`
    trl          transformers 5.x (TrainerState), with the callbacks' rows of TRL 1.16
    verl         verl 0.9.1: LocalLogger and FileLogger; the wheel's folder is the second argument
    tinker       tinker-cookbook 0.6.1: JsonLogger
    prime-rl     prime-rl 559b447: FileMonitor; the repository's src/ is the second argument

All of them are told the same: twelve steps, one NaN, an evaluation at two of them, and two settings.
"""

import asyncio
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

HERE = Path(__file__).parent
CONFIG = {"learning_rate": 1e-6, "max_grad_norm": 0.2}
STEPS = range(1, 13)
HELD_OUT = {5: 0.25, 10: 0.75}


def reward(step):
    return step / 16


def grad_norm(step):
    return float("nan") if step == 7 else 0.5


def tensorboard(out):
    from tensorboard.summary import Writer
    from tensorboardX import SummaryWriter

    old = SummaryWriter(str(out / "run"))
    new = Writer(str(out / "run"))
    old.add_text("args", json.dumps(CONFIG))
    for step in STEPS:
        old.add_scalar("train/reward", reward(step), step)
        if step in HELD_OUT:
            old.add_scalar("eval/reward", HELD_OUT[step], step)
    old.close()
    for step in STEPS:
        new.add_scalar("train/grad_norm", grad_norm(step), step)
    new.close()


def wandb(out):
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(out), "WANDB_SILENT": "true"}
    import wandb as tool

    off = dict.fromkeys(("x_disable_stats", "x_disable_meta", "x_disable_machine_info", "disable_git"), True)
    quiet = tool.Settings(**off, console="off", save_code=False)
    run = tool.init(project="p", name="run", config=CONFIG, settings=quiet)
    for step in STEPS:
        run.log({"train/reward": reward(step), "train/grad_norm": grad_norm(step), "train/global_step": step})
        if step in HELD_OUT:
            run.log({"eval/reward": HELD_OUT[step], "train/global_step": step})
    run.finish()


def swanlab(out):
    import swanlab as tool

    tool.init(project="p", experiment_name="run", mode="offline", logdir=str(out), config=CONFIG)
    for step in STEPS:
        more = {"eval/reward": HELD_OUT[step]} if step in HELD_OUT else {}
        tool.log({"train/reward": reward(step), "train/grad_norm": grad_norm(step), **more}, step=step)
    tool.finish()


def trackio(out):
    os.environ["TRACKIO_DIR"] = str(out)
    import trackio as tool

    for name in ("run", "other"):
        tool.init(project="p", name=name, config=CONFIG, embed=False)
        for step in STEPS:
            more = {"eval/reward": HELD_OUT[step]} if step in HELD_OUT else {}
            row = {
                "train/reward": reward(step),
                "train/grad_norm": grad_norm(step),
                "train/global_step": step,
            }
            tool.log(row | more)
        tool.finish()


def mlflow(out):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow as tool

    for uri in (f"sqlite:///{out}/mlflow.db", f"file://{out}/mlruns"):
        tool.set_tracking_uri(uri)
        tool.set_experiment("p")
        with tool.start_run(run_name="run"):
            tool.log_params(CONFIG)
            for step in STEPS:
                more = {"eval_reward": HELD_OUT[step]} if step in HELD_OUT else {}
                tool.log_metrics(
                    {"reward": reward(step), "train/grad_norm": grad_norm(step), **more}, step=step
                )


def aim(out):
    from aim import Run

    run = Run(repo=str(out), experiment="p", system_tracking_interval=None, capture_terminal_logs=False)
    run.name = "run"
    run["hparams"] = CONFIG
    for step in STEPS:
        run.track(reward(step), name="reward", step=step, context={"subset": "train"})
        run.track(grad_norm(step), name="grad_norm", step=step, context={"subset": "train"})
        if step in HELD_OUT:
            run.track(HELD_OUT[step], name="reward", step=step, context={"subset": "eval"})
    run.close()
    command = [str(Path(sys.executable).with_name("aim")), "storage", "--repo", str(out), "reindex"]
    subprocess.run(command, input=b"y\n", check=True)


def trl(out):
    from transformers import TrainerState

    rows = []
    for step in STEPS:
        rows.append(
            {
                "epoch": step / 12,
                "grad_norm": grad_norm(step),
                "learning_rate": 1e-6,
                "reward": reward(step),
                "step": step,
            }
        )
        if step in HELD_OUT:
            rows.append({"epoch": step / 12, "eval_reward": HELD_OUT[step], "step": step})
    (out / "checkpoint-12").mkdir()
    TrainerState(global_step=12, max_steps=12, log_history=rows).save_to_json(
        out / "checkpoint-12/trainer_state.json"
    )


def _module(file, name):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def verl(out, sources):
    os.environ["VERL_FILE_LOGGER_PATH"] = str(out / "file.jsonl")
    to_console = _module(f"{sources}/verl/utils/logger/aggregate_logger.py", "to_console").LocalLogger()
    to_file = _module(f"{sources}/verl/utils/tracking.py", "to_file").FileLogger("p", "run")
    with redirect_stdout(io.StringIO()) as said:
        print("(TaskRunner pid=7) Training Progress:   0%|          | 0/12 [00:00<?, ?it/s]")
        for step in STEPS:
            row = {
                "training/global_step": step,
                "critic/score/mean": reward(step),
                "actor/grad_norm": grad_norm(step),
            }
            row |= {"val-core/openai/gsm8k/reward/mean@1": HELD_OUT[step]} if step in HELD_OUT else {}
            to_console.log(row, step)
            to_file.log(row, step)
    (out / "console.log").write_text(said.getvalue())
    (out / ".hydra").mkdir()
    policy = f"{{optim: {{lr: {CONFIG['learning_rate']}}}, grad_clip: {CONFIG['max_grad_norm']}}}"
    (out / ".hydra/config.yaml").write_text(f"actor_rollout_ref: {{actor: {policy}}}\n")


def tinker(out):
    from tinker_cookbook.utils.ml_log import JsonLogger

    logger = JsonLogger(out)
    logger.log_hparams(CONFIG)
    for step in STEPS:
        row = {"env/all/reward/total": reward(step), "optim/entropy": grad_norm(step)}
        row |= {"test/env/all/reward/total": HELD_OUT[step]} if step in HELD_OUT else {}
        logger.log_metrics(row, step=step)


def prime_rl(out, sources):
    sys.modules |= {
        f"prime_rl.{name}": MagicMock() for name in ("configs.monitors", "utils.config", "utils.logger")
    }
    sys.modules["prime_rl"] = ModuleType("prime_rl")
    _module(f"{sources}/prime_rl/monitors/base.py", "prime_rl.monitors.base")
    sys.modules["prime_rl.utils.utils"] = MagicMock(
        sanitize=lambda row: ({k: v for k, v in row.items() if v == v}, [])
    )
    monitor = object.__new__(_module(f"{sources}/prime_rl/monitors/file.py", "file_monitor").FileMonitor)
    monitor.file = (out / "metrics.jsonl").open("w")
    for step in STEPS:
        rollouts = {"train/math/all/solver/reward/mean": reward(step), "off_policy/mean": 1.0}
        rollouts |= {"eval/math/all/solver/avg@4": HELD_OUT[step]} if step in HELD_OUT else {}
        asyncio.run(monitor.log_metrics(rollouts, step))
        if step > 1:  # the trainer is a step behind the rollouts
            asyncio.run(monitor.log_metrics({"optim/grad_norm": grad_norm(step - 1)}, step - 1))
    monitor.file.close()
    (out / "configs").mkdir()
    optim = {"optim": {"lr": CONFIG["learning_rate"], "max_norm": CONFIG["max_grad_norm"]}}
    (out / "configs/trainer.json").write_text(json.dumps(optim))


def main(tool, *sources):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / tool
        out.mkdir()
        globals()[tool.replace("-", "_")](out, *sources)
        for told in (*out.rglob("*requirements.txt"), *out.rglob("*metadata.json"), *out.rglob("debug*.log")):
            told.unlink()  # of the machine that it ran on
        with tarfile.open(HERE / f"{tool}.tar.xz", "w:xz") as archive:
            archive.add(out, arcname=tool)


if __name__ == "__main__":
    main(*sys.argv[1:])
