"""A figure or a picture on a screen, with what can be saved of it: PNG and SVG of what is drawn, CSV of its
data.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from itertools import count
from pathlib import Path
from threading import Thread, Timer
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from markupsafe import Markup
from streamlit import runtime
from streamlit.components.v2.types import ComponentRenderer
from streamlit.runtime.scriptrunner import ScriptRunContext, add_script_run_ctx, get_script_run_ctx

from sorl.app.text import tag
from sorl.app.url import follow, view_names

Data = pd.DataFrame | Callable[[], pd.DataFrame]
_Mode = Literal["points", "box"]  # of selecting in a figure

CONFIG: dict[str, Any] = {
    "displayModeBar": False,
    "displaylogo": False,
    "scrollZoom": False,
    "responsive": True,
}
_next = count()


def figure(
    drawn: go.Figure,
    name: str,
    data: Data,
    *,
    describe: str,
    select: bool = False,
    zooms: str = "",
    key: str = "",
) -> list[Any]:
    """Show a figure under `name` (letters, digits, dashes) with its exports; return what the clicked points
    carry.

    `data` is what the CSV holds; `describe` says in a sentence what is drawn, for people who cannot see it,
    and `key` what bands and marks mean: both are the caption of a saved image. Points can be clicked with
    `select`; dragging over a part of x sets the range `zooms` of the address.
    """
    modes: list[_Mode] = ["points"] if select else []
    if zooms:
        _let_zoom(drawn, select=select)
        modes.append("box")
    number = st.session_state.get(f"{name} zoomed", 0)
    with st.container(key=name, gap=None):
        event: Any = st.plotly_chart(
            drawn,
            theme=None,
            key=f"{name}-{number}",
            config=CONFIG,
            alt=describe,
            on_select="rerun" if modes else "ignore",
            selection_mode=modes or "points",
        )
        _buttons(name, data, f"{describe} {key}", _keyboard_marks(describe, select=select))
    if not modes:
        return []
    boxes = event["selection"]["box"] if zooms else []
    if boxes:
        # the next figure is another one, with nothing selected
        st.session_state[f"{name} zoomed"] = number + 1
        follow(zooms, [_steps_of_box(boxes[0]["x"])])
    return [_carried(point) for point in event["selection"]["points"]]


def _let_zoom(drawn: go.Figure, *, select: bool) -> None:
    """Have dragging over a part of x select it."""
    line = {"width": 1, "dash": "solid", "color": drawn.layout.template.layout.font.color}
    drawn.update_layout(dragmode="select", selectdirection="h", newselection={"line": line})
    if select:
        drawn.update_layout(meta="cells", clickmode="event")  # figure.js knows it by that


def _keyboard_marks(describe: str, *, select: bool) -> Markup:
    """What stands for the marks of a figure, which are one canvas: figure.js moves the pointer's label."""
    hint = f"Arrow keys: from mark to mark{', Enter opens one' if select else ''}. "
    return tag(
        "div",
        hint,
        tag("span", aria_live="polite"),
        css="sorl-marks",
        tabindex="0",
        role="application",
        aria_label=f"Marks of this figure: {describe} {hint}",
    )


def _steps_of_box(ends: Sequence[Any]) -> str:
    """Return the range of whole steps in a box, as the address writes it: at least three."""
    low, high = sorted(float(end) for end in ends)
    first = math.ceil(low)
    last = math.floor(high)
    if last - first > 1:
        return f"{first}..{last}"
    middle = round((low + high) / 2)
    return f"{middle - 1}..{middle + 1}"


def _carried(point: Mapping[str, Any]) -> Any:
    """Return what a clicked point carries: the browser sends a list of numbers as {"0": 7, "1": 12}."""
    data = point.get("customdata")
    if not isinstance(data, Mapping):
        return data
    return [data[place] for place in sorted(data, key=int)]


@cache
def _component() -> ComponentRenderer:
    script = Path(__file__).with_name("drawing.js").read_text(encoding="utf-8")
    html = '<div class="sorl-drawing" role="group"></div>'
    return st.components.v2.component("sorl_drawing", html=html, js=script, isolate_styles=False)


def drawing(svg: str, name: str, data: Data, *, describe: str, key: str = "") -> str | None:
    """Show an SVG, whose texts are escaped, with its exports; return the `data-key` of a link that was just
    clicked.
    """
    with st.container(key=name, gap=None):
        about = {"svg": svg, "describe": describe}
        event = _component()(key=f"{name}-drawing", data=about, on_opened_change=lambda: None)
        _buttons(name, data, f"{describe} {key}")
    return event.opened


def _buttons(name: str, data: Data, caption: str, marks: Markup = Markup()) -> None:
    def csv() -> bytes:
        return (data() if callable(data) else data).to_csv(index=False).encode()

    short, title = view_names()
    file = file_name(short, name)
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    ):
        images = (tag("button", kind.upper(), type="button", data_format=kind) for kind in ("png", "svg"))
        about = {"data_figure": name, "data_file": file, "data_title": title, "data_caption": caption.strip()}
        st.html(tag("div", marks, *images, css="sorl-export", **about), width="content")
        button("CSV", csv, f"{file}.csv", "text/csv")


def file_name(*words: str) -> str:
    """Return the name of a file about `words`, without its ending: lower-case letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:60].strip("-") for word in words)
    return "-".join(["sorl", *filter(None, parts)])


def button(label: str, make: Callable[[], bytes], file: str, kind: str) -> None:
    """Show a button `label` that saves what `make` returns as `file`, of media type `kind`."""
    drawing = get_script_run_ctx()

    def made() -> bytes:
        data = make()
        if drawing is not None:
            hold(data, file, kind, drawing)
        return data

    st.download_button(label, made, file, kind, key=file, type="tertiary", on_click="ignore")


def hold(data: bytes, file: str, kind: str, drawing: ScriptRunContext) -> None:
    """Have the running app serve `data` as `file` for a minute; `drawing` drew the button.

    Streamlit drops a file made on demand as soon as two runs of a script have ended, in any session; the
    check for new rows is such a run, twice a second. It keeps the files of a session until that ends or draws
    again. So each file gets a session of its own, which draws nothing: Streamlit takes it from the context of
    the thread.
    """
    manager = runtime.get_instance().media_file_mgr
    owner = copy(drawing)
    owner.session_id = f"sorl download {next(_next)}"
    holding = Thread(target=manager.add, args=(data, kind, "file", file, True), name=owner.session_id)
    add_script_run_ctx(holding, owner)
    holding.start()
    holding.join()
    timer = Timer(60.0, manager.clear_session_refs, [owner.session_id])
    timer.daemon = True
    timer.start()
