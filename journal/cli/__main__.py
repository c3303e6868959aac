"""`python -m journal.cli`: the command where no script was installed."""

from journal.cli import main

main()
