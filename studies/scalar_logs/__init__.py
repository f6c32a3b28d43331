"""Scalar logs with a known truth, simulated, shipped and public, and how often a diagnosis of
them is right.
"""
