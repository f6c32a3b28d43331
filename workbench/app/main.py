"""The web app: reads the folder SORL_RUNS (default `runs`), shows the screen that the address names."""

from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st
from streamlit.navigation.page import Page

from sorl.app.page import SCREENS, page

LOGO = Path(__file__).parent / "logo.svg"


def menu(url: str | None) -> list[Page]:
    """Return every page of the app. The first screen has two addresses; the menu shows the one of `url`."""
    first, *others = SCREENS
    named = urlsplit(url or "").path.endswith(f"/{first}")
    return [page(first, in_menu=not named), page(first, first, in_menu=named), *map(page, others)]


def main() -> None:
    """Draw the menu and the chosen screen."""
    st.set_page_config(page_title="sorl", page_icon=str(LOGO), layout="wide")
    st.logo(str(LOGO), size="large")
    st.navigation(menu(st.context.url), position="top").run()


if __name__ == "__main__":
    main()
