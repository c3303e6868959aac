"""Benchmarks: one script for each claim, each figure a ratio to something measured in the same run.

`python -m benchmarks` runs them all. `_measure` times and interleaves, `_baselines` has what the journal is compared
with, and every other module is one script with its claim in the first sentence.
"""
