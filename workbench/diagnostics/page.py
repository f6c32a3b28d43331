"""The generated part of docs/diagnostics.md: every measured column, the collapse rule, the alarms and their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.diagnostics import CATALOGUE, probe
from workbench.diagnostics.alarms import COOLDOWN
from workbench.diagnostics.collapse import ABRUPT, FINAL, ONSET_TOLERANCE, RECOVERED
from workbench.diagnostics.combined import COMBINED
from workbench.diagnostics.declare import declared, in_words
from workbench.diagnostics.hard import HARD_RULES, HardRule
from workbench.diagnostics.unalarmed import FINER, why_no_alarm
from workbench.spec import CollapseSettings, Diagnostic, LearnSettings, Level, table

# The notation of the formulas.
SYMBOLS: tuple[tuple[str, str], ...] = (
    ("<x>_m", "mean of x over the tokens of the loss mask m, those that the policy wrote"),
    ("m, a", "loss mask: 1 where the policy wrote the token; response mask: 1 on every token after the prompt"),
    ("delta", "log_prob - log_prob_old of a token, in nats: the log of its importance ratio"),
    ("r, w", "ratio of a token, exp(clamp(delta, +-20)); ratio that the algorithm pools"),
    ("A, R, G", "advantage, outcome reward, return that the critic learns"),
    ("V, V_old, V^c", "the critic's value, the one behind the advantages, the one clipped to V_old +- eps_V"),
    ("H, z, p", "entropy of the policy at a token, its logits, its probabilities"),
    ("g, C", "gradient of the policy's loss; clipping bias: what the clip took from the gradient of the surrogate"),
    ("J", "the surrogate, to be made large: no KL term, no entropy bonus, before a stabiliser's factor"),
    ("eps_low, eps_high", "how far a ratio may fall below 1, rise above 1, before the clip stops it"),
    ("K, n_k, s_k", "turns of a trajectory, tokens of turn k, what the policy saw at its beginning"),
    ("k1, k2, k3", "Schulman's three estimates of a KL divergence from samples"),
    ("1[x], #{x}", "1 where x holds and 0 elsewhere; how many times x holds"),
)

# What each setting of the collapse rule is and why its default is what it is.
COLLAPSE_REASONS: dict[str, tuple[str, str]] = {
    "window": ("points of the trailing median", "one bad batch of 64 episodes must not look like a fall"),
    "baseline": (
        "first points, whose mean is the policy before training",
        "as many as the window; an agent after a warm start has already learned much within RAGEN's ten",
    ),
    "severe": ("share of the peak that a collapse loses", "published collapses lose more than half; noise does not"),
    "mild": ("share of the peak that a mild fall loses", "the smallest loss that a user would act on"),
    "points": ("points in a row that the loss has to last", "as long as the window, so that it has turned over once"),
    "sigmas": ("noise widths that the loss, and the gain before it, exceed", "the usual three"),
}


_EVERY = LearnSettings()
_BIAS = ("clip_bias_norm", "clip_bias_ratio", "clip_bias_cosine")


def page() -> str:
    """Markdown: the symbols, a table per table of the store, what costs extra, the alarms, the collapse rule."""
    names = list(dict.fromkeys(d.table for d in CATALOGUE))
    parts = [_columns(name, [d for d in CATALOGUE if d.table == name]) for name in names]
    rule = f"## The collapse rule\n\n{collapse_rule()}"
    return "\n\n".join([_symbols(), *parts, _passes(), _alarms(), rule]) + "\n"


def _symbols() -> str:
    return "## Symbols\n\n" + _markdown(("symbol", "meaning"), ([f"`{s}`", meaning] for s, meaning in SYMBOLS))


def _columns(name: str, diagnostics: Sequence[Diagnostic]) -> str:
    rows = ([f"`{d.name}`", d.unit.value, f"`{d.formula}`", d.description, d.source] for d in diagnostics)
    return f"## Table `{name}`\n\n{table(name).grain}\n\n" + _markdown(
        ("column", "unit", "formula", "what it tells", "source"), rows
    )


def _passes() -> str:
    """The columns that take passes of their own through the network, and the settings that say how often."""
    probed = ", ".join(f"`{measure.name}`" for measure in declared(probe))
    bias = ", ".join(f"`{d.name}`" for d in CATALOGUE if d.name in _BIAS)
    return (
        "## What costs a pass of its own\n\nEverything above comes from the forward and backward passes of training, "
        "except these columns of table `minibatch`. They are NULL on the updates between, and a run trains the same "
        "whether they are taken or not.\n\n"
        + _markdown(
            ("setting", "default", "columns", "costs"),
            (
                ["`learn.probe_every`", f"{_EVERY.probe_every} (never)", probed, "two forward passes and a backward"],
                [
                    "`learn.clip_bias_every`",
                    str(_EVERY.clip_bias_every),
                    bias,
                    "a backward; another where the loss has a KL term, an entropy bonus or a factor that is not 1",
                ],
            ),
        )
    )


def _alarms() -> str:
    rows = ([f"`{d.table}.{d.name}`", in_words(d.alarm), d.alarm.reason] for d in CATALOGUE if d.alarm)
    return (
        "## Alarms\n\nAn alarm is an event of kind `alarm`. It fires once, is armed again when the value has come"
        f" back, and keeps quiet for {COOLDOWN} steps in between. The marks are starting points, not truths: whether "
        "one warns in time on your runs is what the view `lead_time` shows.\n\n"
        + _markdown(("diagnostic", "goes off", "reason"), rows)
        + f"\n\nThe other columns of table `step` have none, for these reasons; the finer tables have none because "
        f"{FINER}.\n\n"
        + _markdown(("diagnostics", "no alarm, because"), _without_alarm())
        + "\n\nTwo findings take more than one value:\n\n"
        + _markdown(
            ("event", "severity", "happens when", "reason"),
            ([f"`{c.kind}`", c.severity, c.happens, c.reason] for c in COMBINED),
        )
    )


def _without_alarm() -> Iterable[Sequence[str]]:
    """Reason by reason the columns of table `step` that have it."""
    found: dict[str, list[str]] = {}
    for d in CATALOGUE:
        if d.level is Level.STEP and not d.alarm:
            found.setdefault(why_no_alarm(d), []).append(f"`{d.name}`")
    return ([", ".join(names), reason] for reason, names in found.items())


def collapse_rule() -> str:
    """Markdown: when a run has collapsed, since when, whether it came back, and the events that need no smoothing."""
    defaults = CollapseSettings()
    settings = (
        [f"`collapse.{name}`", f"{getattr(defaults, name):g}", meaning, reason]
        for name, (meaning, reason) in COLLAPSE_REASONS.items()
    )
    hard = ([f"`{rule.kind}`", _mark(rule), rule.reason] for rule in HARD_RULES)
    return f"""\
With `s` the training success of a step, `m` its trailing median, `P` the largest `m` so far, `b` the held-out success
before the first update (without one, the mean of the first points) and `sigma` = 1.4826 x the median absolute deviation
of `s - m` so far, but at least the standard error of a share of `learn.episodes` at `P` or `b` (without that floor, the
ties of a run at 1 to 3 % success make `sigma` 0, and most runs that never learn are called collapsed):

- **Fall**: at `collapse.points` points in a row `(P - m) / P` is at least the threshold or the start is lost, and at
  the last of them either `P - m >= sigmas x sigma_loss` and `P >= b + sigmas x sigma_gain` (it had learned), or the
  start is lost. *The start is lost* when `m <= (1 - collapse.severe) b0` and `b0 - m >= sigmas x sigma_start`: what
  the warm start could do is gone, be it in the first update. `b0` is `b` where that was held out, else the first
  point; in a log that does not tell how many episodes that is the share of it is `b`, and `P - m >= sigmas x
  sigma_loss` must hold as well. Past `collapse.severe` the event is `collapse`, past `collapse.mild` it is `mild`.
  The first step at which all of it holds is the *detection*.
- **Onset**: the last step at or after the peak with `m >= P - max(sigma, {ONSET_TOLERANCE:g} P)`, where `P` is `b0` if
  no `m` came up to it; the first step if no `m` is that near.
- **Abrupt**: at most {ABRUPT} steps from onset to detection.
- **Recovery**: after the detection, `m >= P - {RECOVERED:g} (P - lowest m)` at `collapse.points` points in a row.
  Without it the fall is *terminal*, or *censored* when the run ends within `collapse.points` points.
- **Outcome**: `diverged` when the run could not go on, else `collapsed`, else `mild`, else `no_learning` when `P` never
  rose above `b + sigmas x sigma_gain`, else `healthy`. NULL while there are fewer points than the baseline needs.
- `run.final_success` is the mean of the last {FINAL} steps.

`sigma_loss = sigma sqrt(2 q)`, `sigma_gain = sqrt(sigma^2 q + se(b)^2)` and `sigma_start` (with `se(b0)`) are the noise
of what is compared, with `q = min(1, pi / (2 window))` the variance of a median of `window` points over that of one.

Everything is causal: a live run and its log get the same verdict.

{_markdown(("setting", "default", "meaning", "reason"), settings)}

Hard events need no smoothing and happen at most once in a run:

{_markdown(("event", "happens when", "reason"), hard)}"""


def _mark(rule: HardRule) -> str:
    scale = {"": "", "peak": " x its running maximum", "baseline": " x the mean of its first points"}[rule.relative]
    held = "" if rule.points == 1 else " at `collapse.points` points in a row"
    return f"`step.{rule.diagnostic}` {rule.when} {rule.value:g}{scale}{held}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
