"""The only code that waits: drivers run the protocols of `journal._core`, in threads and on event loops.

`common` is what both have in common, `threads` and `tasks` are the two drivers, `committing` brings the commits of
tasks to the writer, and `signals` is what a `reconcile` is given.
"""
