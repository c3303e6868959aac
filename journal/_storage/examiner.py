"""The process that looks at a damaged file for another one: a line of JSON for each finding.

Whatever happens to it happens to nobody else; see `journal._storage.examination`, which starts it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from journal._storage.environment import Environment
from journal._storage.examination import pinned_problems, problems_at
from journal._storage.files import DATA_FILE
from journal._storage.store import Store
from journal.errors import JournalError
from journal.options import MAP_BYTES_MIN, WAIT_TIMEOUT_SECONDS
from journal.values import Finding


def main(directory: str, what: str) -> None:
    """Print what is wrong with the `pages` of a journal, its `records`, or `all`."""
    for finding in _findings(directory, what):
        print(json.dumps([finding.table, finding.position, finding.problem]), flush=True)  # noqa: T201 - to who started it
    sys.stdout.flush()


def _findings(directory: str, what: str) -> Iterator[Finding]:
    if what in ("pages", "all"):
        yield from _page_findings(directory)
    if what in ("records", "all"):
        try:
            store = Store(
                directory,
                readonly=True,
                create=False,
                map_size=MAP_BYTES_MIN,
                max_size=None,
                wait_timeout=WAIT_TIMEOUT_SECONDS,
                clock=lambda: 0,
            )
        except (JournalError, OSError) as error:
            yield Finding("file", None, str(error))
            return
        yield from store.walk()
        store.close()


def _page_findings(directory: str) -> Iterator[Finding]:
    path = os.path.join(directory, DATA_FILE)
    try:
        environment: Any = Environment(directory, readonly=True, map_size=MAP_BYTES_MIN, max_size=None)
    except Exception:  # noqa: BLE001 - whatever LMDB makes of it, its pages can be looked at: nobody writes to such a file
        problems = problems_at(path, None) or []
    else:
        problems = pinned_problems(path, environment.read)
        environment.close()
    for problem in problems:
        yield Finding("file", None, problem)
