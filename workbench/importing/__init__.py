"""Logs of other trainers: files, consoles and trackers, read as runs."""
