"""Sentences beside the pictures: functions that take the data that the picture draws."""
