"""prime-rl's token export as a turn ledger: `python examples/prime_rl.py OUTPUT_DIR RUNS`.

With `enable_token_export` prime-rl writes `token_exports/step_N/rank_R.jsonl`: for every sequence of a step
the log-probs of sampler and trainer, importance ratio, masks, advantages and rewards of each token. Versions
after mid-2026 write annotations in its place, which this does not read. It names no prompt groups, and a step
has one update.
"""

import json
import sys
from pathlib import Path

import numpy as np

from sorl import Ledger

COLUMNS = {
    "log_prob": "trainer_logprobs",
    "log_prob_old": "inference_logprobs",
    "entropy": "entropy",
    "log_prob_behaviour": "inference_logprobs",
    "mask": "loss_mask",
    "advantages": "advantages",
}
TERMS = {"ratio": "importance_ratio", "active_low": "is_masked_low", "active_high": "is_masked_high"}


def main(exports, runs):
    steps = {int(f.name.removeprefix("step_")): f for f in Path(exports).glob("token_exports/step_*")}
    with Ledger(runs, experiment="prime-rl", algorithm="prime-rl", trainer="prime-rl") as ledger:
        for step in sorted(steps):
            files = sorted(steps[step].glob("rank_*.jsonl"))
            rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            if not rows or any(row.get("rewards") is None for row in rows):
                sys.exit(
                    f"'{steps[step]}' has no rewards: this version of prime-rl keeps them in its traces alone"
                )
            width = max(len(row["token_ids"]) for row in rows)

            def padded(name, rows=rows, width=width):
                wide = [row[name] + [0] * (width - len(row[name])) for row in rows]
                return np.array([[np.nan if x is None else x for x in row] for row in wide], dtype=float)

            rewards = [next(x for x in reversed(row["rewards"]) if x is not None) for row in rows]
            ledger.rollouts(step, rewards, responses=[row["token_ids"] for row in rows])
            terms = {
                ours: padded(theirs) for ours, theirs in TERMS.items() if rows[0].get(theirs) is not None
            }
            ledger.update(step, **{ours: padded(theirs) for ours, theirs in COLUMNS.items()}, terms=terms)
            ledger.end(step)
    return ledger.folder


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
