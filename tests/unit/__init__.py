"""Tests of one module each, in memory or in a temporary directory."""
