"""Sentences for people: functions that take data and return words, without Streamlit."""
