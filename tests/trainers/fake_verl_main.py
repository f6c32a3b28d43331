"""Stands in for `python -m verl.trainer.main_ppo`: its overrides, what it prints, its checkpoints.

The score rises, and falls from step 30 on unless the learning rate is at most 1e-6.
"""

import random
import sys
import time
from pathlib import Path

STEPS = 60
FALLS_AFTER = 30


def main() -> None:
    options = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
    folder = Path(options["trainer.default_local_dir"])
    first = 1
    if options.get("trainer.resume_mode") == "resume_path":
        checkpoint = options["trainer.resume_from_path"]
        assert (Path(checkpoint) / "actor").is_dir(), checkpoint
        first = int(checkpoint.split("global_step_")[-1]) + 1
        print(f"Setting global step to {first - 1}", flush=True)
    is_ruined = float(options["actor_rollout_ref.actor.optim.lr"]) > 1e-6
    noise = random.Random(first)
    for step in range(first, STEPS + 1):
        score = min(0.2 + 0.02 * step, 0.7)
        if is_ruined and step > FALLS_AFTER:
            score = max(0.0, 0.7 - 0.1 * (step - FALLS_AFTER))
        score += noise.gauss(0.0, 0.02)
        print(
            f"(TaskRunner pid=1) step:{step} - critic/score/mean:{score:.4f} - actor/entropy:0.5"
            f" - training/global_step:{step}",
            flush=True,
        )
        if step % int(options["trainer.save_freq"]) == 0:
            (folder / f"global_step_{step}" / "actor").mkdir(parents=True, exist_ok=True)
            (folder / f"global_step_{step}" / "actor" / "model.pt").touch()
        time.sleep(float(options.get("seconds", "0.03")))


if __name__ == "__main__":
    main()
