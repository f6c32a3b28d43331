"""A model by its name: a folder on this machine, or a repository of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.spec import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]  # no pickles, no code


def locate(model: str) -> Path:
    """The folder of `model`: itself, or the hub's files of it in the Hugging Face cache, downloaded on first use.

    Raises InputError when there is no such folder and the hub gives no such model (unknown, gated, or no network).
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not _NAME.fullmatch(model):
        raise InputError(f"no folder '{model}' for model; give a folder, or a name of the hub like 'Qwen/Qwen2.5-0.5B'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"model '{model}' is no folder here, and the Hugging Face hub did not give it: {reason}. Download it where "
            f"there is a network (`hf download {model}`) and set model to its folder"
        ) from error


def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder; one without a padding token pads with <eos>, which no mask lets through.

    Raises InputError when the folder holds none that can be read without running its code.
    """
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"no tokenizer in '{folder}': {reason}; save it there: tokenizer.save_pretrained") from error
    if loaded.pad_token_id is None:
        loaded.pad_token = loaded.eos_token or loaded.convert_ids_to_tokens(0)
    found: PreTrainedTokenizerBase = loaded
    return found
