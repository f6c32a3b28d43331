"""Token dumps of other trainers: a file a format, each yields the rows of a step."""
