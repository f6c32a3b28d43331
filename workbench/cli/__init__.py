"""The command line: one module a verb; shared, tables and results are common to them."""
