"""A stored batch that nobody trained: eight sequences in groups of two, turns of unequal length, ratios far
from 1.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LOGGED = {"policy_loss": 0.5, "grad_norm": 1.5, "grad_norm_after": 1.0, "lr": 0.1}


def write_batch(run: Path, step: int, *, text: str = "word", arrays: Any = None, **meta: Any) -> Path:
    """Write the batch of `step` into the run's folder, which becomes one; every token reads `text`.

    `arrays` replaces some of its arrays, and leaves out those that are None.
    """
    random = np.random.default_rng(step)
    b = 8
    t = 30
    length = random.integers(18, t + 1, b).astype(np.int32)
    inside = np.arange(t) < length[:, None]
    response = inside & (np.arange(t) >= 4)
    mask = response & (np.arange(t) // 5 % 2 == 1)
    old = (-random.random((b, t)) * mask).astype(np.float32)
    new = (old + random.normal(0, 0.5, (b, t)) * mask).astype(np.float32)
    row = np.arange(b, dtype=np.int32)
    number = random.normal(0, 1, (2, b, t)).astype(np.float32)
    made = {
        "tokens": random.integers(0, 9, (b, t)).astype(np.int32),
        "response": response,
        "mask": mask,
        "length": length,
        "group": row // 2,
        "trajectory": row,
        "score": (row % 3 == 0).astype(np.float32),
        "log_prob_behaviour": old,
        "log_prob_old": old,
        "advantages": number[1] * mask,
        "values": number[0],
        "update.size": np.array([4, 4], np.int32),
        "update.rows": row,
        "update.log_prob": new,
    } | (arrays or {})
    told = {
        "format": 1,
        "step": step,
        "algorithm": "ppo",
        "slots": {},
        "texts": {str(i): text for i in range(9)},
        "updates": [{"epoch": 0, "rollout_step": step, "passes": [4], "scalars": LOGGED}] * 2,
        **meta,
    }
    (run / "batches").mkdir(parents=True, exist_ok=True)
    (run / "config.toml").touch()
    file = run / "batches" / f"{step:06d}.safetensors"
    kept = {name: np.ascontiguousarray(a) for name, a in made.items() if a is not None}
    save_file(kept, file, {"sorl": json.dumps(told)})
    return file
