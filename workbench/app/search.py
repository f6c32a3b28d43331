"""A box to type into whose text is in the address."""

from __future__ import annotations

import streamlit as st

from workbench.app.address import arrive, leave

_LONGEST = 200  # characters


def search_box(name: str, label: str, placeholder: str) -> str:
    """What was typed, kept in URL parameter `name`; read anew while it is typed."""
    arrive(name, lambda given: (given[0][:_LONGEST] if given else "", []), lambda value: isinstance(value, str))
    typed = st.text_input(label, key=name, placeholder=placeholder, type="search", live=True, max_chars=_LONGEST)
    leave(name, [typed] if typed else [], typed=True)
    return typed or ""
