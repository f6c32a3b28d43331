"""How a run can end: the words of column `run.outcome`, and what every count of runs does with each of them."""

from __future__ import annotations

from typing import Literal, get_args

Outcome = Literal["healthy", "mild", "no_learning", "recovered", "falling", "collapsed", "diverged"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
MEANINGS: dict[Outcome, str] = {
    "healthy": "rose above its start and ended near its best",
    "mild": "ended at least a fifth below its best, or with a critical event, but did not lose half",
    "no_learning": "never rose above its start, and did not lose it",
    "recovered": "collapsed, and came back near its best before it ended",
    "falling": "ended at half of its best or below, too late or too noisily for the collapse rule",
    "collapsed": "lost half of its best by the collapse rule, and did not come back",
    "diverged": "could not go on: NaN or Inf in a loss, a gradient or the score, or a crashed engine",
}
# A collapse happened: an event for incidence, survival and regions. NaN counts too, or the arm that died of it would
# look stable; and a run that came back had collapsed all the same.
COLLAPSED: tuple[Outcome, ...] = ("collapsed", "recovered", "diverged")
# Neither an event nor a survivor: left out of incidence, censored where the fall began.
UNDECIDED: tuple[Outcome, ...] = ("falling",)
