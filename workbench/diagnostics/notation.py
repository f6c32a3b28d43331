"""The notation of the formulas, and the collapse rule in words: docs/diagnostics.md and the glossary show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.diagnostics.collapse import FINAL, PRIOR, WINDOW
from workbench.diagnostics.hard import FIRST, HARD_RULES, HardRule
from workbench.spec import MEANINGS, CollapseSettings

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
    "severe": ("share of the best that a collapse loses", "published collapses lose more than half; noise does not"),
    "mild": ("share of the best that a mild fall loses", "the smallest loss that a user would act on"),
    "false_collapse": (
        "one run in 1 / this that lost nothing may be called collapsed",
        "a table of a hundred runs has about one wrong word; the measured rates are below",
    ),
    "false_ending": (
        "one run in 1 / this that lost nothing may be called falling; the same odds for recovered and for learned",
        "said once, at the end of a run, so that no second look can take it back",
    ),
}


def collapse_rule() -> str:
    """Markdown: when a run has collapsed, since when, whether it came back, and the events that need no smoothing."""
    defaults = CollapseSettings()
    settings = (
        [f"`collapse.{name}`", f"{getattr(defaults, name):g}", meaning, reason]
        for name, (meaning, reason) in COLLAPSE_REASONS.items()
    )
    hard = ([f"`{rule.kind}`", _mark(rule), rule.reason] for rule in HARD_RULES)
    words = ([f"`{word}`", meaning] for word, meaning in MEANINGS.items())
    return f"""\
The rule judges the counts behind success, not its curve. A step's success is a share of `n` episodes
(`learn.episodes`), of which `g` share a prompt.

- **Noise.** A step weighs `n / phi` episodes. `phi` is the mean of `(s_t - s_(t-1))^2 / (2 p (1 - p) / n)` over the
  steps so far (`p` the mean of the two), at least 1, with {PRIOR} steps at `(1 + g) / 2` as its prior. Steps of a fall
  under way do not count. A score of unknown `n`, as the reward in another trainer's log, is taken as normal with half
  the mean squared difference of neighbours as its variance.
- **Best.** The stretch of {WINDOW}, {2 * WINDOW}, {4 * WINDOW}, ... steps whose lower bound `B` (Wilson, `z = sqrt(2
  log(1 + t / {WINDOW}))`, the size of the largest of so many errors) is highest; `best` is the mean there. Of a run
  that has not risen above its start: the highest 90 % bound of the stretches that begin with the run and of the
  held-out success before training. The maximum of noisy means grows with the length of a run; `B` hardly does.
- **Fall.** A CUSUM `C_t = max(C_(t-1), log w_t) + (n / phi) log(f(s_t; q) / f(s_t; B))` of binomial log-likelihood
  ratios, for `q = (1 - loss) B` and `q = B / 10`, with `w_t = 1 / (2 (t + 1))` the weight of a fall that begins at step
  t. A single step brings at most half of what is wanted, so no batch decides alone. The fall is called at the first
  step with `C_t >= log(1 / collapse.false_collapse)` at which the mean since (of the later half of the fall, at least
  {WINDOW} steps) is at most `(1 - loss) best` within a standard error, or the 90 % upper bound of a shorter one
  is. That step is the *detection*. With `loss = collapse.severe` the event is `collapse`, with `collapse.mild` it is
  `mild`.
- **Onset.** The last step before the fall, and its 95 % interval (`onset_low`, `onset_high`): the likelihood of scores
  that stay at one level up to a step, fall along a straight line and stay at a lower one, maximised over the length of
  the line; the interval holds every step within 1.92 nats. It looks both ways; the detection never does.
- **Recovery.** After the detection the same CUSUM with `B` against `(1 - loss) B`, and a mean since that is not below
  `(1 - collapse.mild) best` by more than one standard error.
- **Falling.** At its end a run has a last stretch of 1 to 10 steps whose mean is at most `(1 - collapse.severe) best`,
  and the counts of both are at least `1 / collapse.false_ending` times likelier with two means than with one.
- **Learned.** The best stretch lies above the start (held out, else the mean of the first {WINDOW} steps) with
  `z^2 / 2 >= log(steps / {WINDOW}) + log(1 / collapse.false_ending)`.
- **Undecided** (NULL): fewer than {WINDOW} steps and no fall.
- `run.final_success` is the mean of the last {FINAL} steps.

How a run ended. `diverged`, `collapsed`, `falling`, `recovered` and `mild` come before the other two, in this order:

{_markdown(("outcome", "the run"), words)}

Everything but the onset is causal: a live run and its log get the same verdict.

{_markdown(("setting", "default", "meaning", "reason"), settings)}

Hard events need no statistics and happen at most once in a run:

{_markdown(("event", "happens when", "reason"), hard)}"""


def _mark(rule: HardRule) -> str:
    scale = {"": "", "peak": " x its running maximum", "baseline": f" x the mean of its first {FIRST} points"}
    held = "" if rule.points == 1 else f" at {rule.points} points in a row"
    return f"`step.{rule.diagnostic}` {rule.when} {rule.value:g}{scale[rule.relative]}{held}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
