"""A scripted trainer: the contract of `python -m sorl.learn` without learning anything.

    python trainer.py FOLDER --cache CACHE

It reads the folder's config.toml, beats in `heartbeat` and checkpoints at every step, prints one JSON line a
step, writes rows of tables `step`, `minibatch` and `run` (each once, also when it is resumed), holds `lock`,
and ends with the exit codes of the real one. What goes wrong is scripted by a file `script.json` next to the
experiments, per arm:

    step_seconds   how long a step takes, without a sign of life unless `beats`
    wait_at        hold this step until there is a file `go` as well
    fail_at        raise in this step, with `message`; `silent`: die by SIGKILL instead
    hang_at        never finish this step
    times          fail or hang only in so many attempts
    grow_at        hold 512 MiB from this step on; `child`: in a child process
    nan_at         diverge in this step
    alarm_at       roll back to the first step when this one is done, while changes of the guard are left
    dies_then      die by SIGKILL once, when that decision is on the disk
    ignore_sigint  do not stop when asked
    starting       seconds before anything happens, signals unheard
    exit, said     end at once with this exit code and these last words
    killed_after   die by SIGKILL after the run is finished
    grandchild     start a process that outlives the run
    grad_norm, row recorded at the end
    factor         of the stabiliser, in every update

Without a script of its own, an arm falls as `falls` says of its algorithm: {"ppo": {"0": 0.2, "8": 0.1}} has
every run of ppo collapse from learning rate 0.1 on at staleness 8.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from sorl.learn.pulse import Pulse
from sorl.recording.segments import SegmentWriter
from sorl.spec import RunSettings, table
from sorl.spec.files import lock_file
from sorl.spec.heartbeat import NAME
from sorl.spec.rollback import Rollback
from sorl.store.segments import now


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    config = tomllib.loads((folder / "config.toml").read_text())
    identity = json.loads((folder / "run.json").read_text())
    identity["config"] = RunSettings.model_validate(config).model_dump_json()
    known = {c.name: identity[c.name] for c in table("run").columns if c.name in identity}
    scripts = folder.parent.parent / "script.json"
    scripted = json.loads(scripts.read_text()) if scripts.exists() else {}
    edge = scripted.get("falls", {}).get(identity["algorithm"], {}).get(str(config["learn"]["staleness"]))
    fell = (
        {"row": {"outcome": "collapsed"}}
        if edge is not None and config["learn"]["policy"]["lr"] >= edge
        else {}
    )
    script = scripted.get(identity["arm"], fell)
    time.sleep(script.get("starting", 0))
    if "exit" in script:
        print(script.get("said", ""), file=sys.stderr)
        return int(script["exit"])
    if script.get("grandchild"):
        (folder / "grandchild").write_text(str(subprocess.Popen(["sleep", "100"]).pid))
    with (folder / "starts.txt").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    pulse = Pulse(folder / NAME)
    pulse.part("getting ready")
    lock = lock_file(folder / "lock")
    if lock is None:
        print("sorl: the run is being trained by another process", file=sys.stderr)
        return 4
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, (lambda *_: None) if script.get("ignore_sigint") else (lambda n, _: asked.append(n))
        )

    rows = SegmentWriter(folder, flush_seconds=60)
    started = now()

    def write(**changes: object) -> None:
        rows.append("run", known | {"started_at": started, "written_at": now()} | changes)
        rows.flush()

    done = max((int(f.name) for f in (folder / "checkpoints").glob("[0-9]*")), default=0)
    write(status="running", steps=done)
    pulse.begin()
    for step in range(done + 1, config["iterations"] + 1):
        pulse.step(step - 1, config["iterations"])
        until = time.monotonic() + script.get("step_seconds", 0.01)
        while time.monotonic() < until:
            time.sleep(min(0.1, script.get("step_seconds", 0.01)))
            if script.get("beats"):
                pulse.part("waiting")
        pulse.part("working")
        given_up = time.monotonic() + 200  # after a test that failed nothing else ends it
        while step == script.get("wait_at") and not (scripts.parent / "go").exists() and not asked:
            if time.monotonic() > given_up:
                return 1
            time.sleep(0.02)
        bad = len((folder / "starts.txt").read_text().split()) <= script.get("times", 1000)
        if step == script.get("fail_at") and bad:
            message = script.get("message", "RuntimeError: scripted failure")
            print(message, file=sys.stderr, flush=True)
            if script.get("silent"):
                os.kill(os.getpid(), signal.SIGKILL)
            write(status="failed", steps=step, reason=message)
            return 1
        if step == script.get("hang_at") and bad:
            wait_for_an_answer_that_never_comes()
        if step == script.get("grow_at"):
            hold = "import time; ballast = b'x' * (512 << 20); time.sleep(100)"
            if script.get("child"):
                subprocess.run([sys.executable, "-c", hold], check=True)
            exec(hold)
        drawn = ((step - 1) * 2654435761 + identity["seed"] * 40503) % 1000 / 1000
        rows.append("step", {"run_id": folder.name, "step": step - 1, "success": drawn, "written_at": now()})
        rows.flush()
        checkpoint(folder, step)
        seen = {"success": 0.1 * step, "clip_frac": 0.02, "grad_norm": 4, "at": time.time()}
        print(json.dumps({"step": step, "steps": config["iterations"], **seen}), flush=True)
        if step == script.get("nan_at"):
            reason = f"loss or gradient is not finite in step {step - 1}"
            write(status="finished", steps=step, outcome="diverged", reason=reason)
            return 0
        if step == script.get("alarm_at") and rolls_back(folder, identity, config, step):
            if script.get("dies_then") and len((folder / "starts.txt").read_text().split()) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            write(status="finished", steps=step, outcome="collapsed", reason="rolled back", ended_at=now())
            return 0
        if asked:
            write(status="interrupted", steps=step, reason="stopped by SIGINT")
            return 3
    steps = list(range(config["iterations"]))
    measured = {"grad_norm": script.get("grad_norm", 4.0)}
    measured |= {"clip_frac": 0.02, "stabiliser_factor": script.get("factor"), "update": 0, "epoch": 0}
    rows.append("minibatch", {"run_id": folder.name, "step": steps, "rollout_step": steps, **measured})
    last = {"outcome": "healthy", **script.get("row", {})}
    write(status="finished", steps=config["iterations"], ended_at=now(), **last)
    if script.get("killed_after"):
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def rolls_back(folder: Path, identity: dict[str, object], config: dict[str, Any], step: int) -> bool:
    """Write the decision of a guard that has changes left; whether it has."""
    guard = config["guard"]
    number = guard["done"] + 1
    if number > len(guard["changes"]):
        return False
    change = guard["changes"][number - 1]
    why = f"collapse at step {step}"
    place = (str(identity["experiment"]), folder.name, 1)
    Rollback(*place, step, why, change, number, len(guard["changes"])).write(folder)
    return True


def wait_for_an_answer_that_never_comes() -> None:
    time.sleep(200)


def checkpoint(folder: Path, step: int) -> None:
    """A checkpoint is there whole or not at all; the one before it goes."""
    checkpoints = folder / "checkpoints"
    unfinished = checkpoints / f".writing-{os.getpid()}"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "progress.json").write_text(json.dumps({"step": step}))
    unfinished.rename(checkpoints / f"{step:06d}")
    for old in sorted(checkpoints.glob("[0-9]*"))[:-1]:
        shutil.rmtree(old)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
