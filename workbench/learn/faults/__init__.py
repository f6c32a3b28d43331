"""The fault lab: bugs of real trainers, injected by `[fault]` in a grid file; docs/faults.md lists them."""

from sorl.learn.faults import kinds
from sorl.learn.faults.declare import FAULTS, Fault, Kind, check, fault

__all__ = ["FAULTS", "Fault", "Kind", "check", "fault", "kinds"]
