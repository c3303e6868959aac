"""The `journal` command, of the extra `cli`.

This module imports neither Typer nor Rich, so that the command can say what it lacks, and so that the processes that
`journal demo` starts do not pay for them. The commands are listed in `journal.cli.app`.
"""

import sys

__all__ = ["main"]

_EXTRA = {"typer", "rich"}
EXIT_WRONG_USE = 2


def main() -> None:
    """The console script: runs the command line and exits with its status.

    0 is fine, 1 found something, 2 is wrong use, a missing extra too.
    """
    try:
        from journal.cli.app import app  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            f"journal: the command line needs {error.name}, which is not installed; "
            "run: pip install 'effect-journal[cli]'",
            file=sys.stderr,
        )
        sys.exit(EXIT_WRONG_USE)
    app(prog_name="journal")
