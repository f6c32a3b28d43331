"""The collapse rule in words, for docs/collapse.md and the glossary of the app."""

from __future__ import annotations

from importlib.resources import files

from sorl.collapse.curve import FINAL, PRIOR, WINDOW
from sorl.collapse.events import HARD
from sorl.spec import MEANINGS, CollapseSettings
from sorl.spec.markdown import markdown_table

# What each setting of the collapse rule is and why its default is what it is.
COLLAPSE_REASONS: dict[str, tuple[str, str]] = {
    "severe": (
        "share of the best that a collapse loses",
        "published collapses lose more than half; noise does not",
    ),
    "mild": ("share of the best that a mild fall loses", "the smallest loss that a user would act on"),
    "false_collapse": (
        "one run in 1 / this that lost nothing may be called collapsed",
        "a table of a hundred runs has about one wrong word; the measured rates are in docs/collapse.md",
    ),
    "false_ending": (
        (
            "one run in 1 / this that lost nothing may be called falling; the same odds for recovered and "
            "for learned"
        ),
        "said once, at the end of a run, so that no second look can take it back",
    ),
}


def describe_rule() -> str:
    """Say in Markdown when a run has collapsed, since when and whether it came back; then the hard events."""
    defaults = CollapseSettings()
    settings = (
        [f"`collapse.{n}`", f"{getattr(defaults, n):g}", *reasons] for n, reasons in COLLAPSE_REASONS.items()
    )
    hard = ([f"`{rule.kind}`", rule.happens, rule.reason] for rule in HARD)
    words = ([f"`{word}`", meaning] for word, meaning in MEANINGS.items())
    text = files(__package__).joinpath("rule.md").read_text(encoding="utf-8")
    return text.format(
        prior=PRIOR,
        window=WINDOW,
        twice_window=2 * WINDOW,
        four_times_window=4 * WINDOW,
        final=FINAL,
        outcomes=markdown_table(("outcome", "the run"), words),
        settings=markdown_table(("setting", "default", "meaning", "reason"), settings),
        hard_events=markdown_table(("event", "happens when", "reason"), hard),
    )
