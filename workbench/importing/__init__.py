"""Other trainers: their logs as runs, their batches as a turn ledger, our algorithms as their losses."""
