"""The address of a screen and the widgets whose values are in it: every view is a link, every choice one step
back.
"""

import json
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlencode

import streamlit as st

from sorl.app.text import markdown_text, tag, visible

T = TypeVar("T")
Said = dict[str, list[str]]  # URL parameter -> its values
Read = tuple[T, list[str]]  # what a parameter means, and the values in it that were ignored
Options = Mapping[str, str] | Sequence[str]  # option -> its words, or options that are words

# addresses that one entry of the history may have had: typing changes the address letter by letter
_LAST = 200
_SHOWN = 60  # characters of an ignored value that are shown
_TYPED = 200  # characters of a search
# Streamlit adds a screen to the history without its parameters, and an address written later as a second
# entry: Back would lead from the view to itself. So the page itself completes the entry that is there.
_COMPLETE = """
<script>
  if (!{elsewhere}.includes(location.pathname.split('/').pop()))
    history.replaceState(history.state, '', {query});
</script>
"""


@dataclass
class _Address:
    screen: str = ""
    # the last address that came from outside: a link, the back button
    news: Said = field(default_factory=dict)
    whole: bool = False  # whether a parameter that `news` leaves out stands for the default
    number: int = 0  # of `news`
    # control -> the number of the address that it last read
    read: dict[str, int] = field(default_factory=dict)
    # addresses that the browser may send without anyone changing them
    heard: list[Said] = field(default_factory=list)
    now: Said = field(default_factory=dict)  # control -> what it says in this run of the script
    typed: set[str] = field(default_factory=set)  # controls whose change is no step of the back button
    written: Said | None = None  # what the controls said at the end of the last run
    left: Said = field(default_factory=dict)  # control -> what it last said on any screen
    wished: Said | None = None  # choices that one screen hands to the next
    named: tuple[str, str] = ("", "")  # what `name_view` said: in few words, and in a line


def _address() -> _Address:
    return cast("_Address", st.session_state.setdefault("sorl address", _Address()))


def _said() -> Said:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def begin(screen: str) -> None:
    """Start to collect what the screen's controls say; read the address if it is not one that the browser
    repeats.
    """
    current = _address()
    given = _said()
    opened = current.wished is not None or current.screen != screen
    if opened:
        current.screen = screen
        current.written = None
    if opened or (given and given not in current.heard):
        current.news = given if current.wished is None else current.wished
        current.whole = not opened
        current.number += 1
        current.heard = [given]
    current.now = {}
    current.typed = set()
    current.wished = None
    current.named = ("", "")


def name_view(short: str, whole: str) -> None:
    """Name the arms or the run that the screen shows, in few words and in a line that says how many seeds
    they are.
    """
    _address().named = (short, whole)


def asked(name: str) -> str:
    """Return what control `name` is about to be set to, by a new address or by the last choice; empty for its
    default.
    """
    current = _address()
    is_new = current.read.get(name) != current.number
    values = current.news.get(name, []) if is_new else current.left.get(name, [])
    return next(iter(values), "")


def chosen(name: str) -> str:
    """Return what control `name` of this screen is set to; empty where the screen has none."""
    return next(iter(_address().now.get(name, [])), "")


class ViewNames(NamedTuple):
    """What the screen shows, by name: the experiment and what `name_view` said of it."""

    short: str  # for the tab and for files
    title: str  # of a figure


def view_names() -> ViewNames:
    """Return the names of what the screen shows."""
    short, whole = _address().named
    experiment = chosen("experiment") or _address().screen
    title = f"{experiment} · {whole}" if whole else experiment
    return ViewNames(f"{experiment} {short}".strip(), title)


def choices() -> Said:
    """Return what all controls of this screen say, in the words of an address; defaults are left out."""
    return {name: values for name, values in _address().now.items() if values}


def finish(screens: Collection[str]) -> None:
    """Update the address: a choice is a new entry of the history, anything else completes the present one."""
    current = _address()
    given = _said()
    wanted = {name: values for name, values in current.now.items() if values}
    before = current.written
    current.written = wanted
    if given == wanted:
        return
    if before is not None and {n for n in before | wanted if before.get(n) != wanted.get(n)} - current.typed:
        current.heard = [wanted]
        st.query_params.from_dict(wanted)
        return
    current.heard = [*current.heard[-_LAST:], wanted]
    elsewhere = [name for name in screens if name != current.screen]
    query = json.dumps("?" + urlencode(wanted, doseq=True))
    st.html(_COMPLETE.format(elsewhere=elsewhere, query=query), unsafe_allow_javascript=True)


def hand_to_next_screen(parameters: Mapping[str, str | list[str]]) -> Said:
    """Have the next screen open with these choices. Returns the address that the browser shows until then."""
    current = _address()
    current.wished = {
        name: [values] if isinstance(values, str) else list(values) for name, values in parameters.items()
    }
    return _said() if current.written is None else current.written


def read_widget(name: str, read: Callable[[Sequence[str]], Read[Any]], fits: Callable[[Any], bool]) -> None:
    """Give widget `name` what was picked, or what a new address says; else it keeps what was chosen on any
    screen.
    """
    current = _address()
    given = _given(name)
    same = given is None and current.read.get(name) == current.number
    if same and name in st.session_state and fits(st.session_state[name]):
        return
    st.session_state[name], ignored = read(current.left.get(name, []) if given is None else given)
    _tell(ignored if given else [])


def _tell(ignored: Sequence[str]) -> None:
    for words in ignored:
        st.html(tag("p", f"Ignored in the address: {words}.", css="sorl-note"))


def write_to_address(name: str, values: Sequence[str], *, typed: bool = False) -> None:
    """Say in the address what control `name` is set to: nothing for its default. `typed`: a change is no step
    back.
    """
    current = _address()
    current.read[name] = current.number
    current.left[name] = current.now[name] = list(values)
    if typed:
        current.typed.add(name)


def keep_in_address(*names: str) -> None:
    """Keep in the address what it says of controls that are not drawn while an answer is on its way."""
    _address().now.update({name: st.query_params.get_all(name) for name in names})


def count_as_typed(*names: str) -> None:
    """Count what these controls say in this run as no step back: it belongs to the choice whose answer has
    come.
    """
    _address().typed.update(names)


def forget(name: str) -> None:
    """Set widget `name` back to its default."""
    st.session_state.pop(name, None)
    _address().left.pop(name, None)


def _given(name: str) -> list[str] | None:
    # What `follow` or the address newly says of a control, [] for its default; None where there is no news of
    # it.
    current = _address()
    picked: list[str] | None = st.session_state.pop(f"{name} picked", None)
    if picked is not None:
        current.read[name] = current.number  # what the address says is out of date
        return picked
    given = current.news.get(name, [])
    return None if current.read.get(name) == current.number or not (given or current.whole) else given


def some_of(
    name: str, given: Sequence[str], allowed: Collection[str], default: Sequence[str], most: int | None = None
) -> Read[list[str]]:
    """Return the first `most` allowed values of parameter `name`, each once; `default` where none fits; and
    notes.
    """
    fits = [value for value in dict.fromkeys(given) if value in allowed]
    ignored = [value for value in given if value not in allowed] + (fits[most:] if most else [])
    return (fits[:most] or list(default)), _notes(name, ignored)


def between(name: str, given: Sequence[str], low: int, high: int) -> Read[tuple[int, int]]:
    """Return a range written `7..30`, cut to [low, high]; all of [low, high] where no value is
    a range in it.
    """
    for place, value in enumerate(given):
        if ends := re.fullmatch(r"(-?\d{1,15})\.\.(-?\d{1,15})", value):
            first = int(ends[1])
            last = int(ends[2])
            if first <= last and first <= high and last >= low:
                return (max(low, first), min(high, last)), _notes(name, given[:place])
    return (low, high), _notes(name, given)


def _notes(name: str, ignored: Sequence[str]) -> list[str]:
    texts = [visible(value) for value in ignored[:3]]
    notes = [f"{name} = {(text if len(text) <= _SHOWN else text[:_SHOWN] + '…')!r}" for text in texts]
    return [*notes, f"{len(ignored) - 3} more values of {name}"] if len(ignored) > 3 else notes


def choose(
    name: str,
    label: str,
    options: Options,
    default: str | None = None,
    *,
    kind: Literal["list", "row"] = "list",
    width: int | Literal["stretch"] = "stretch",
) -> str:
    """Choose one of `options` (at least one), kept in URL parameter `name`; drawn as a list, or as a row of
    words.
    """
    words = _words(options)
    first = default if default is not None and default in words else next(iter(words))

    def read(given: Sequence[str]) -> Read[str]:
        (value,), ignored = some_of(name, given, words, [first], 1)
        return value, [f"{one}; shown instead: {words[value]}" for one in ignored]

    read_widget(name, read, lambda value: value in words)
    if kind == "list":
        chosen = (
            st.selectbox(label, list(words), key=name, format_func=words.__getitem__, width=width) or first
        )
    else:
        literal = {option: markdown_text(text) for option, text in words.items()}
        chosen = (
            st.segmented_control(label, [*words], key=name, format_func=literal.__getitem__, required=True)
            or first
        )
    write_to_address(name, [chosen])
    return chosen


def choose_many(
    name: str,
    label: str,
    options: Options,
    default: Sequence[str],
    most: int | None = None,
    *,
    implied: bool = False,
) -> list[str]:
    """Choose any of `options`, in order, kept in URL parameter `name`; an `implied` default is left out
    there.
    """
    words = _words(options)
    read_widget(name, lambda given: some_of(name, given, words, default[:most], most), set(words).issuperset)
    chosen = st.multiselect(
        label, list(words), key=name, format_func=words.__getitem__, max_selections=most, wrap=True
    )
    write_to_address(name, [] if implied and chosen == list(default) else chosen)
    return chosen


def _words(options: Options) -> Mapping[str, str]:
    return {o: visible(options[o] if isinstance(options, Mapping) else o) for o in options}


def choose_range(name: str, label: str, low: int, high: int) -> tuple[int, int]:
    """Choose a range inside [low, high], kept in URL parameter `name`; the whole range stays out of the
    address.
    """
    if low >= high:
        _given(name)  # a pick means nothing here
        write_to_address(name, [])
        return low, high
    before = st.session_state.get(f"{name} ends")
    if before not in (None, (low, high)) and name in st.session_state:
        first, last = st.session_state[name]  # a range that reaches the end of a live run goes on reaching it
        first = low if first == before[0] else first
        last = high if last == before[1] else last
        st.session_state[name] = (first, last) if low <= first <= last <= high else (low, high)
    st.session_state[f"{name} ends"] = (low, high)
    read_widget(
        name, lambda given: between(name, given, low, high), lambda value: low <= value[0] <= value[1] <= high
    )
    first, last = cast("tuple[int, int]", st.slider(label, low, high, key=name))
    write_to_address(name, [] if (first, last) == (low, high) else [f"{first}..{last}"])
    return first, last


def choose_number(
    name: str, label: str, low: int, high: int, default: int, *, kind: Literal["box", "slider"] = "box"
) -> int:
    """Choose a whole number in [low, high], kept in URL parameter `name`; drawn as a box, or as a slider."""

    def read(given: Sequence[str]) -> Read[int]:
        if given and re.fullmatch(r"-?\d{1,15}", given[0]) and low <= int(given[0]) <= high:
            return int(given[0]), []
        return default, _notes(name, given[:1])

    read_widget(name, read, lambda value: low <= value <= high)
    if low >= high:
        value = low
    elif kind == "slider":
        value = int(st.slider(label, low, high, key=name))
    else:
        value = int(st.number_input(label, low, high, key=name, step=1, width=160))
    write_to_address(name, [str(value)])
    return value


def search_box(name: str, label: str, placeholder: str) -> str:
    """Type a text, kept in URL parameter `name` and read while it is typed."""
    read_widget(
        name, lambda given: (given[0][:_TYPED] if given else "", []), lambda value: isinstance(value, str)
    )
    typed = st.text_input(
        label, key=name, placeholder=placeholder, type="search", live=True, max_chars=_TYPED
    )
    write_to_address(name, [typed] if typed else [], typed=True)
    return typed or ""


def keep(
    name: str, under: Hashable, read: Callable[[Sequence[str]], T], written: Callable[[T], Sequence[str]]
) -> T:
    """Keep what was picked in a figure in URL parameter `name` while the view `under` it (run and step) is
    the same.
    """
    same = st.session_state.get(f"{name} under") == under
    st.session_state[f"{name} under"] = under
    given = _given(name)
    parameters: Sequence[str] = []
    if given is not None:
        parameters = given
    elif same:
        parameters = _address().left.get(name, [])
    value = read(parameters)
    kept_values = list(written(value))
    _tell(_notes(name, [one for one in given or [] if one not in kept_values]))
    write_to_address(name, kept_values)
    return value


def keep_number(name: str, under: Hashable, allowed: Collection[int] | None = None) -> int | None:
    """Keep a picked whole number as `keep` does: the first that is `allowed`; else the first allowed one, if
    any.
    """

    def read(given: Sequence[str]) -> int | None:
        numbers = [int(value) for value in given if value.isdecimal() and len(value) < 10]
        fits = [n for n in numbers if allowed is None or n in allowed]
        return next(iter([*fits, *(allowed or ())]), None)

    return keep(name, under, read, lambda n: [] if n is None else [str(n)])


def follow(name: str, values: Sequence[str]) -> None:
    """Draw the view again with another pick; it is one step in the address."""
    st.session_state[f"{name} picked"] = list(values)
    st.rerun()
