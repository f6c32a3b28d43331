"""Memory: log-probs and their gradient over a vocabulary of 151,936 (Qwen2.5), in parts against all logits at
once.

python bench/vocabulary.py ELEMENTS OUT.safetensors    one side, in a process of its own
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.measure import Memory
    from bench.training import Scene


# 4 x 256 predicted tokens: 622 MB of logits in float32
VOCABULARY = 151_936
ROWS = 4
LENGTH = 257
_WHOLE = 1 << 40  # logits held at once that no batch has


def measure(scene: Scene) -> list[Memory]:
    """Both sides, once: peak memory is the same every time."""
    from safetensors.torch import load_file

    from bench.measure import Memory
    from sorl.learn.networks import ELEMENTS

    said = {}
    made = {}
    for side, elements in (("parts", ELEMENTS), ("whole", _WHOLE)):
        file = scene.folder / f"vocabulary-{side}.safetensors"
        command = [sys.executable, __file__, str(elements), str(file)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        said[side] = json.loads(out.splitlines()[-1])
        made[side] = load_file(file)

    def apart(name: str) -> float:
        return float((made["parts"][name] - made["whole"][name]).abs().max())

    gradients = [name for name in made["whole"] if name.startswith("gradient.")]
    largest = max(float(made["whole"][name].abs().max()) for name in gradients)
    return [
        Memory(
            ROWS * (LENGTH - 1),
            VOCABULARY,
            said["parts"]["bytes"],
            said["whole"]["bytes"],
            said["parts"]["seconds"],
            said["whole"]["seconds"],
            apart("log_prob"),
            apart("entropy"),
            max(apart(name) for name in gradients) / largest,
        )
    ]


def _side(elements: int, out: Path) -> dict[str, Any]:
    import psutil
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from sorl.learn.networks import linear_head, log_probs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            initializer_range=0.1,
        )
    )
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH))
    linear_head(model)  # its trial is not what is measured
    before = psutil.Process().memory_info().rss
    began = time.perf_counter()
    log_prob, entropy = log_probs(model, tokens, temperature=0.9, elements=elements)
    (-log_prob.sum()).backward()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    gradients = {f"gradient.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    save_file({"log_prob": log_prob.detach(), "entropy": entropy.detach(), **gradients}, out)
    return {"bytes": peak - before, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(_side(int(sys.argv[1]), Path(sys.argv[2]))))
