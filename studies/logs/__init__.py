"""How `sorl diagnose` does on logs of other trainers: real ones with labels, and generated ones in every
format and naming, whose truth is known.
"""
