"""Inside other trainers: their batches as a turn ledger, our algorithms as their losses."""
