"""The DuckDB index of the run folders: sync, queries, stored batches."""
