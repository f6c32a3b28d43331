"""Single functions and classes of a trainer, run without the trainer's dependencies."""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any


def load_function(file: Path, name: str, namespace: dict[str, Any]) -> Any:
    """The function (or method) of that name in a source file, which sees `namespace` as its module."""
    source = file.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list = []
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            code = compile(textwrap.dedent("\n".join(lines)), str(file), "exec")
            exec(code, namespace)
            return namespace[name]
    raise ValueError(f"{file} has no function {name}")


def stand_in(name: str, folder: Path | None = None, **attributes: Any) -> ModuleType:
    """A module of that name in place of the trainer's; its submodules are read from `folder`, if given."""
    module = ModuleType(name)
    module.__path__ = [str(folder)] if folder is not None else []
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    sys.modules[name] = module
    return module
