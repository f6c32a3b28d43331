"""Configurations next to a log: their settings by dotted key, whatever trainer wrote them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from sorl.spec.files import MIB, from_json, from_toml, leaves, read_text

_CONFIGS = (
    "config.yaml",
    ".hydra/config.yaml",
    "files/config.yaml",
    "config.json",
    "hparams.yaml",
    "args.json",
    "training_args.json",
    "configs/trainer.json",
    "configs/orchestrator.json",
    "config.toml",
)
_KEYS = 5000  # of a configuration


def configs(path: Path) -> list[Path]:
    """Return the configurations next to a log."""
    folder = path if path.is_dir() else path.parent
    files = (folder / name for name in (f"{path.stem}.yaml", *_CONFIGS))
    return [file for file in files if file != path and file.is_file()]


def config_near(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return the settings in the configurations next to a log, by dotted key; `notes` names one that is not
    read.
    """
    config: dict[str, Any] = {}
    for file in configs(path):
        unread = f"the configuration {file.name} was not read"
        try:
            table = _READERS[file.suffix](read_text(file, MIB))
            settings = flattened(table)
        except ModuleNotFoundError as error:
            notes.append(f"{unread}: it needs {error.name}, `pip install 'sorl[logs]'`")
        except OSError as error:
            notes.append(f"{unread}: {error.strerror or 'the file cannot be opened'}")
        except (ValueError, RecursionError) as error:
            notes.append(f"{unread}: {str(error).splitlines()[0][:200]}")
        else:
            if not isinstance(table, dict):
                notes.append(f"{unread}: it holds no settings by name")
            config = settings | config
    return config


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({type(error).__name__})") from None


_READERS: dict[str, Callable[[str], Any]] = {".yaml": _yaml, ".json": from_json, ".toml": from_toml}


def flattened(table: Any) -> dict[str, Any]:
    """Return a configuration by dotted key; W&B and SwanLab wrap each value in {"value": ...}."""
    if not isinstance(table, dict):
        return {}
    plain = {str(k): v["value"] if isinstance(v, dict) and "value" in v else v for k, v in table.items()}
    return {key: value for key, value in islice(leaves(plain), _KEYS) if not isinstance(value, dict | list)}
