"""The address of the screen: every view is a link, and each opening and each choice is one step of the back button."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

Said = dict[str, list[str]]

# Of the session: the screen; what its controls say now, and said at the end of the last drawing; the addresses that the
# browser may send without a word from outside; the last word from outside, with its number; what one screen wished of
# the next.
_SCREEN, _NOW, _WRITTEN, _HEARD = "sorl screen", "sorl address", "sorl address before", "sorl heard"
_NEWS, _WISHED, _TYPED = "sorl news", "sorl wished", "sorl typed"
_LAST = 200  # addresses that one entry of the history may have had: a letter typed, an address
# Streamlit enters a screen into the history with an address that says nothing, and whatever is written after that as a
# second entry: Back would lead from the view to itself. So the page itself completes the entry that is there.
_COMPLETE = """
<script>
  if (!{elsewhere}.includes(location.pathname.split('/').pop())) history.replaceState(history.state, '', {query});
</script>
"""


def begin(screen: str) -> None:
    """Start to collect what the screen's controls say, and see whether the address brings news.

    What the browser was last told is none, and nothing is what it was opened with: it goes on sending either.
    """
    state, said = st.session_state, _said()
    state[_NOW], state[_TYPED] = {}, set()
    wished = state.pop(_WISHED, None)
    opened = wished is not None or state.get(_SCREEN) != screen
    if opened:
        state[_SCREEN], state[_WRITTEN] = screen, None
    if opened or (said and said not in state[_HEARD]):
        number = state[_NEWS][0] + 1 if _NEWS in state else 0
        state[_NEWS] = (number, said if wished is None else wished, not opened)
        state[_HEARD] = [said]


def arrive(name: str, read: Callable[[Sequence[str]], tuple[Any, list[str]]], fits: Callable[[Any], bool]) -> list[str]:
    """Give control `name` the value of the address, when that came from outside: a link, the back button, the menu.

    A screen opened without the parameter keeps what was chosen before, on this screen or another. Returns what was
    ignored.
    """
    given = news(name)
    mine = given is None and st.session_state.get(_at(name)) == _number()
    if mine and name in st.session_state and fits(st.session_state[name]):
        return []
    value, ignored = read(left(name) if given is None else given)
    st.session_state[name] = value
    return ignored if given else []


def news(name: str) -> list[str] | None:
    """What the address newly says of control `name`, nothing for its default; None where there is no news of it."""
    _, said, whole = st.session_state[_NEWS]
    if st.session_state.get(_at(name)) == _number():
        return None
    given: list[str] = said.get(name, [])
    return given if given or whole else None


def taken(name: str) -> None:
    """What the address says of control `name` is out of date: the control has its value from elsewhere."""
    st.session_state[_at(name)] = _number()


def left(name: str) -> list[str]:
    """What control `name` said when it was last drawn, on any screen."""
    found: list[str] = st.session_state.get(f"{name} left", [])
    return found


def leave(name: str, values: Sequence[str], *, typed: bool = False) -> None:
    """What control `name` says in the address; nothing where it stands at what needs no saying.

    A change of what is `typed` letter by letter is no step of the back button.
    """
    taken(name)
    st.session_state[f"{name} left"] = list(values)
    st.session_state[_NOW][name] = list(values)
    if typed:
        st.session_state[_TYPED].add(name)


def ask(parameters: Mapping[str, str | list[str]]) -> Said:
    """Have the next screen open with these choices. Returns the address that the browser shows until then."""
    st.session_state[_WISHED] = {k: [v] if isinstance(v, str) else list(v) for k, v in parameters.items()}
    present: Said | None = st.session_state.get(_WRITTEN)
    return _said() if present is None else present


def finish(screens: Collection[str]) -> None:
    """Bring the address up to date: a choice is a new entry of the history, anything else completes the present one.

    `screens` are the names of all screens: when the browser is at another by now, nothing is written.
    """
    state, said = st.session_state, _said()
    wanted = {name: values for name, values in state[_NOW].items() if values}
    before, state[_WRITTEN] = state[_WRITTEN], wanted
    if said == wanted:
        return
    if before is not None and _changed(before, wanted) - state[_TYPED]:
        state[_HEARD] = [wanted]
        st.query_params.from_dict(wanted)
        return
    state[_HEARD] = [*state[_HEARD][-_LAST:], wanted]
    query = "?" + urlencode(wanted, doseq=True)
    elsewhere = [name for name in screens if name != state[_SCREEN]]
    st.html(_COMPLETE.format(elsewhere=elsewhere, query=json.dumps(query)), unsafe_allow_javascript=True)


def _said() -> Said:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _changed(one: Said, other: Said) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


def _at(name: str) -> str:
    return f"{name} at"


def _number() -> int:
    number: int = st.session_state[_NEWS][0]
    return number
