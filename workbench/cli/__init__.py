"""The command line: its verbs; shared and tables are common to them."""
