"""Audit: what a stored step says it did, recomputed from what it had.

A violated identity is a proof that something is wrong, whatever its cause: both sides were stored by the
trainer.
"""

from workbench.audit.case import Check, explain
from workbench.audit.identities import IDENTITIES, audit, chosen

__all__ = ["IDENTITIES", "Check", "audit", "chosen", "explain"]
