"""The generated part of docs/regions.md: the settings of a search."""

from __future__ import annotations

from workbench.spec import RegionSettings


def search_settings() -> str:
    """Markdown: one row per setting of table [region]."""
    lines = ["| setting | default | what it is |", "| --- | --- | --- |"]
    for name, field in RegionSettings.model_fields.items():
        default = "" if field.is_required() else "none" if field.default is None else str(field.default)
        lines.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(lines)
