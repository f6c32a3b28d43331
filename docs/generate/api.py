"""Generated block of docs/api.md: the public names of `sorl`, with signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import sorl

WIDTH = 100  # characters of a signature that stays on one line
METHODS = {"Ledger": ("rollouts", "update", "evaluation", "end", "close")}  # that a user calls, in this order
DERIVED = ("TrlLoss",)  # mixins: their arguments are those of the class that they are mixed into
STARS: Mapping[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def interface() -> str:
    """Return one section for each public name."""
    return "\n\n".join(_section(name) for name in sorl.__all__)


def _section(name: str) -> str:
    thing = getattr(sorl, name)
    parts = [f"### `{name}`", _fenced(_heading(name, thing)), first_paragraph(thing)]
    for method in METHODS.get(name, ()):
        function = getattr(thing, method)
        parts += [f"#### `{name}.{method}`", _fenced(signature(method, function)), first_paragraph(function)]
    return "\n\n".join(parts)


def _heading(name: str, thing: Any) -> str:
    """Return a call of the thing; of an exception or a class that is only derived from, its class line."""
    is_exception = inspect.isclass(thing) and issubclass(thing, BaseException)
    if is_exception or name in DERIVED:
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        return f"class {name}({bases})" if bases else f"class {name}"
    return signature(name, thing)


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def first_paragraph(thing: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())


def signature(name: str, thing: Any) -> str:
    """Return the call of a function or class with types and defaults; a long one has a parameter a line."""
    found = inspect.signature(thing)
    words: list[str] = []
    keyword_only = False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            words.append("*")
            keyword_only = True
        words.append(_parameter(parameter))
    result = "" if inspect.isclass(thing) else f" -> {_annotation(found.return_annotation)}"
    short = f"{name}({', '.join(words)}){result}"
    if len(short) <= WIDTH:
        return short
    lines = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{lines}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = STARS.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _annotation(annotation: Any) -> str:
    """Return an annotation as its module writes it; a class by its name alone."""
    if isinstance(annotation, str):
        return annotation
    if inspect.isclass(annotation):
        return annotation.__name__
    return inspect.formatannotation(annotation)
