"""Audit: what a stored step says it did, recomputed from what it had.

A violated identity is a proof that something is wrong, whatever its cause: both sides were stored by the
trainer.
"""

from sorl.audit.case import explain
from sorl.audit.identities import IDENTITIES, audit, chosen
from sorl.audit.witnesses import WITNESSES, Tables, witness_checks, witness_tables
from sorl.spec.evidence import Check

__all__ = [
    "IDENTITIES",
    "WITNESSES",
    "Check",
    "Tables",
    "audit",
    "chosen",
    "explain",
    "witness_checks",
    "witness_tables",
]
