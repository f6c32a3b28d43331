"""The fault lab: bugs of real trainers, injected into ours from `[fault]`; `declared` names them, docs/faults.md lists
them.
"""
