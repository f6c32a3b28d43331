"""How often an audit finds a bug that nobody listed: bugs of trainers in code, runs that have them, and the
count.
"""
