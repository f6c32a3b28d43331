"""The fault lab: bugs of real trainers, injected by `[fault]` in a grid file.
them.
"""
