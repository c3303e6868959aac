"""Decisions: no I/O, no clock, no thread, no randomness, no log."""
