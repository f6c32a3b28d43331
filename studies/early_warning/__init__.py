"""Early warning: detectors over a run's own curves, and how often, how soon and how wrongly they warn of a
collapse.
"""
