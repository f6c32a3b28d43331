"""A picture of our own on a screen: SVG whose links open without leaving the session, with its exports."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from workbench.app import export

if TYPE_CHECKING:
    from streamlit.components.v2.types import ComponentRenderer

    from workbench.app.theme import Palette

_HTML = '<div class="sorl-drawing" role="group"></div>'


@cache
def _component() -> ComponentRenderer:
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return st.components.v2.component("sorl_drawing", html=_HTML, js=script, isolate_styles=False)


def drawing(svg: str, name: str, data: export.Data, palette: Palette, *, describe: str) -> str | None:
    """Show an SVG under `name` with its exports; the `data-key` of the link that was just clicked, if any.

    The SVG is put into the page as it is: who made it has escaped what is not ours. `data` is what the CSV holds;
    `describe` says in a sentence what is drawn, for people who cannot see it.
    """
    with st.container(key=name):
        shown = {"svg": svg, "name": name, "background": palette.background, "describe": describe}
        told = _component()(key=f"{name}-drawing", data=shown, on_opened_change=lambda: None)
        export.row(name, data)
    opened: str | None = told.opened
    return opened
