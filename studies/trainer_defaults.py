"""Collect the default settings of TRL's GRPO and verl's PPO from their published packages, by version.

`python -m studies.trainer_defaults FOLDER` reads every `trl-*.whl` and `verl-*.whl` in a folder (as `pip
download --no-deps trl==0.15.2` leaves them) and writes workbench/difference/trainer_defaults.json. Nothing of
a package is imported or run: Python is read as a syntax tree, YAML by its safe loader.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from sorl.spec.files import leaves

OUTPUT = Path(__file__).parents[1] / "workbench" / "difference" / "trainer_defaults.json"
# In the order of inheritance: what a later class says, counts.
TRL_CLASSES = (
    ("trl/trainer/base_config.py", ("BaseConfig", "_BaseConfig")),
    ("trl/trainer/grpo_config.py", ("GRPOConfig",)),
)
# The first that a package has. The generated file is the other with all that it includes.
VERL_FILES = ("verl/trainer/config/_generated_ppo_trainer.yaml", "verl/trainer/config/ppo_trainer.yaml")
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?e[+-]?\d+")
PLAIN = (bool, int, float, str, type(None))


def trl_defaults(wheel: ZipFile) -> dict[str, Any]:
    """Return the defaults of GRPOConfig that are written as plain values."""
    defaults: dict[str, Any] = {}
    files = set(wheel.namelist())
    for file, classes in TRL_CLASSES:
        if file not in files:
            continue
        tree = ast.parse(wheel.read(file))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                defaults |= _fields_of(node)
    return defaults


def _fields_of(config: ast.ClassDef) -> dict[str, Any]:
    """Return the plain defaults of a dataclass: `name: type = value`, or `= field(default=value)`."""
    fields: dict[str, Any] = {}
    for node in config.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        default = _default_in(node.value)
        try:
            value = ast.literal_eval(default) if default is not None else ...
        except ValueError:
            continue
        if isinstance(value, PLAIN):
            fields[node.target.id] = value
    return fields


def _default_in(value: ast.expr | None) -> ast.expr | None:
    if isinstance(value, ast.Call):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        return given.get("default")
    return value


def verl_defaults(wheel: ZipFile) -> dict[str, Any]:
    """Return the defaults of verl's PPO trainer by dotted key; values that refer to others are left out."""
    files = set(wheel.namelist())
    file = next(file for file in VERL_FILES if file in files)
    table = yaml.safe_load(wheel.read(file))
    defaults: dict[str, Any] = {}
    for key, value in leaves(table):
        is_reference = isinstance(value, str) and "${" in value
        is_internal = key.rpartition(".")[2] == "_target_"
        if isinstance(value, PLAIN) and not is_reference and not is_internal:
            defaults[key] = _as_number(value)
    return defaults


def _as_number(value: Any) -> Any:
    """Return a number that YAML takes for a text, as `1e-6`, as one; anything else as it is."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    return value


READERS = {"trl": trl_defaults, "verl": verl_defaults}


def histories(by_version: Mapping[Version, Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return option -> [[version, default], ...], an entry where a default is another than in the version
    before; [version] alone where there is no such option.
    """
    versions = sorted(by_version)
    options = set[str]().union(*by_version.values())
    return {option: _history(option, versions, by_version) for option in sorted(options)}


def _history(
    option: str, versions: Iterable[Version], by_version: Mapping[Version, Mapping[str, Any]]
) -> list[list[Any]]:
    entries: list[list[Any]] = []
    for version in versions:
        defaults = by_version[version]
        state = [defaults[option]] if option in defaults else []
        if not entries or repr(entries[-1][1:]) != repr(state):
            entries.append([str(version), *state])
    return entries


def main(folder: Path, output: Path = OUTPUT) -> None:
    """Read the wheels of a folder and write the table."""
    tables: dict[str, dict[Version, dict[str, Any]]] = {package: {} for package in READERS}
    for file in sorted(folder.glob("*.whl")):
        package, version, *_ = parse_wheel_filename(file.name)
        if package in READERS:
            with ZipFile(file) as wheel:
                tables[package][version] = READERS[package](wheel)
    document = {package: _document(table) for package, table in tables.items()}
    lines = [f"{json.dumps(package)}: {_packed(part)}" for package, part in document.items()]
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _document(by_version: Mapping[Version, Mapping[str, Any]]) -> dict[str, Any]:
    versions = [str(version) for version in sorted(by_version)]
    return {"versions": versions, "options": histories(by_version)}


def _packed(part: Mapping[str, Any]) -> str:
    """Return a package's table as JSON with an option a line."""
    options = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entries)}" for name, entries in part["options"].items()
    )
    return '{"versions": ' + json.dumps(part["versions"]) + ',\n"options": {\n' + options + "\n}}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
