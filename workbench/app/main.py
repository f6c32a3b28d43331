"""The web app: reads the folder SORL_RUNS (default `runs`), shows the screen that the address names."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from workbench.app.navigation import menu

LOGO = Path(__file__).parent / "logo.svg"


def main() -> None:
    """Draw the menu and the chosen screen."""
    st.set_page_config(page_title="sorl", page_icon=str(LOGO), layout="wide")
    st.logo(str(LOGO), size="large")
    st.navigation(menu(st.context.url), position="top").run()


if __name__ == "__main__":
    main()
