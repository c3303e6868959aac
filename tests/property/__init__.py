"""The journal against a slow and obvious twin, and against laws that hold for every input."""
