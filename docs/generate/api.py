"""Generated block of docs/api.md: the public names of `sorl`, with signatures and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import sorl

WIDTH = 100  # characters of a signature that stays on one line
METHODS = {"Ledger": ("rollouts", "update", "evaluation", "end", "close")}  # that a user calls, in this order


def interface() -> str:
    """Return one section for each public name, in alphabetical order."""
    return "\n\n".join(_section(name) for name in sorted(sorl.__all__, key=str.lower))


def _section(name: str) -> str:
    thing = getattr(sorl, name)
    parts = [f"### `{name}`", first_paragraph(thing)]
    if not _is_mixin(thing):
        parts.insert(1, _fenced(signature(name, thing)))
    for method in METHODS.get(name, ()):
        function = getattr(thing, method)
        parts += [f"#### `{name}.{method}`", _fenced(signature(method, function)), first_paragraph(function)]
    return "\n\n".join(parts)


def _is_mixin(thing: Any) -> bool:
    """Whether the class passes all arguments on, so that its signature says nothing."""
    if not inspect.isclass(thing):
        return False
    kinds = {parameter.kind for parameter in inspect.signature(thing).parameters.values()}
    return kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


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
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def _annotation(annotation: Any) -> str:
    """Return an annotation as its module writes it, or as Python would."""
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation)
