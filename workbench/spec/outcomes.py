"""How a run can end: the words of column `run.outcome`, and what every count of runs does with each of them."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

Outcome = Literal["healthy", "mild", "no_learning", "recovered", "falling", "collapsed", "diverged"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
MEANINGS: dict[Outcome, str] = {
    "healthy": "rose above its start and kept it",
    "mild": "lost a fifth of its best and did not regain it, or had a critical event, but did not lose half",
    "no_learning": "did not rise above its start, and did not lose it",
    "recovered": "collapsed, and was back near its best at the end",
    "falling": "was down by half in its last steps, too few of them for the collapse rule",
    "collapsed": "lost half of its best, and did not come back",
    "diverged": "training could not continue: NaN or Inf in a loss, a gradient or the score, or a crashed engine",
}
# A collapse happened: the event of incidence, survival and regions. NaN counts too, or the arm that died of it would
# look stable; and a run that came back had collapsed all the same (where training stops after a collapse, none can).
COLLAPSED: tuple[Outcome, ...] = ("collapsed", "recovered", "diverged")
# Neither an event nor a survivor: left out of incidence, censored where the fall may have begun.
UNDECIDED: tuple[Outcome, ...] = ("falling",)


def cause(row: Mapping[str, Any]) -> str:
    """The cause of a bad end by a row of table `run`: diverged, hang, out of memory, killed or failed; else empty."""
    if row.get("outcome") == "diverged":
        return "diverged"
    if row.get("status") != "failed":
        return ""
    causes = {"hang": "hang", "out of memory": "out of memory", "killed": "killed", "lost": "killed"}
    return next((name for start, name in causes.items() if str(row.get("reason")).startswith(start)), "failed")
