"""docs/agents.md: its five commands run as written, and what they print fits the schemas."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from sorl.store import example
from tests.cli.command import done, record, refused, sorl, told
from tests.difference.logs import SETTINGS, trl_run

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "docs" / "schemas"
PAGE = (ROOT / "docs" / "agents.md").read_text()
STEM = "ppo-s0-7c0dfe63"


def schema(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return found


def fits(document: object, name: str) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(document)


@pytest.mark.parametrize("name", sorted(file.stem for file in SCHEMAS.glob("*.json")))
def test_a_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$id"] == f"sorl.{name}/1"
    assert f"[sorl.{name}/1](schemas/{name}.json)" in PAGE


def commands() -> list[list[str]]:
    """The five commands of the page, without their comments."""
    block = PAGE.split("```")[1]
    return [shlex.split(line.partition("#")[0])[1:] for line in block.strip().splitlines()]


def test_the_five_commands_of_the_page_run_one_after_the_other(tmp_path):
    good = trl_run(tmp_path / "good", 0)
    bad = trl_run(tmp_path / "dead", 1, settings={**SETTINGS, "learning_rate": 1e-4})
    named = {"LOG": str(bad), "GOOD": str(good)}
    printed = []
    for command in commands():
        words = [named.get(word, word) for word in command]
        printed.append(done(*words, runs=tmp_path / "runs").stdout)
    diagnosis, difference, _, rows, arms = printed
    fits(json.loads(diagnosis), "diagnose")
    fits(json.loads(difference), "diff")
    assert json.loads(difference)["name"] == "learning_rate"
    assert {"step", "reward", "entropy"} <= set(json.loads(rows)[0])
    fits(json.loads(arms), "compare")


def test_documents_of_the_example_fit():
    runs = example.runs_folder()
    fits(told("diagnose", "quickstart", runs=runs), "diagnose")
    fits(told("diagnose", STEM, runs=runs), "diagnose")
    fits(told("diff", "st-ppo", STEM, runs=runs), "diff")
    fits(told("compare", "quickstart", runs=runs), "compare")


def test_a_log_without_a_single_number_fits_as_well(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {step}, "reward": NaN, "grad_norm": NaN}}\n' for step in range(3)))
    document = told("diagnose", log, runs=tmp_path)
    assert document[0]["reading"]["not_finite"]
    fits(document, "diagnose")


def test_exit_codes_are_those_of_the_page(tmp_path):
    runs = tmp_path / "runs"
    record(runs, "ppo", 0)
    assert re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE) == ["0", "1", "2"]
    assert sorl("diagnose", STEM, "--quick", runs=example.runs_folder()).exit_code == 0
    grave = sorl("diagnose", STEM, "--quick", "--fail-on", "critical", runs=example.runs_folder())
    assert grave.exit_code == 1
    refused("no run", "diagnose", "nobody", runs=runs)
