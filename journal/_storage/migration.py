"""Makes a journal of an older format into today's: one write transaction, by whoever opens it for writing first.

`STEPS` has one entry for each older format. What a step leaves alone is read as it is by today's code, so a reader of an
older format needs none of this. A process with an older library that has the journal open finds another header at its
next commit, and refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import lmdb
import msgspec

from journal._storage import layout
from journal._storage.views import StoreView, encode
from journal.records import FORMAT_VERSION


def _only_adds(txn: lmdb.Transaction) -> None:
    """The next format adds kinds of records and rows: what is there is right as it stands."""


STEPS: Final[dict[int, Callable[[lmdb.Transaction], None]]] = {1: _only_adds}
"""What makes each older format's rows into those of the next one, within the transaction; the header is none of it."""


def migrate(txn: lmdb.Transaction) -> None:
    """Bring rows and header to today's format, and commit; nothing is written where another process was faster."""
    fields = msgspec.msgpack.decode(StoreView(txn, b"").raw_header() or b"")
    if fields[0] >= FORMAT_VERSION:
        return
    for version in range(fields[0], FORMAT_VERSION):
        STEPS[version](txn)
    # Field by field: what a later version of the old format added to the header's end stays there.
    content = encode([FORMAT_VERSION, *fields[1:]])
    txn.put(layout.HEADER_KEY, layout.seal(layout.HEADER_KEY, content))
    txn.commit()
