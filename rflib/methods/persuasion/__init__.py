"""Persuasion by several senders (Hossain et al., ICML 2024): games, equilibria, certificates.

Nothing is imported here: `game`, `best_response`, `certificate` and their neighbours are NumPy and
SciPy, and whoever only wants to certify a profile must not wait for the learning stack.
"""
