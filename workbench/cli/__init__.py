"""The command line: one module a verb; shared and tables are common to them."""
