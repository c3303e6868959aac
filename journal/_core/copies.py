"""The protocols of a journal that is a copy: what it says of itself, and a person's word that it may go on.

What the copy makes doubtful is decided in `journal._core.ledger.standing` and `recovery.decisions`.
"""

from __future__ import annotations

import msgspec

from journal._core.requests import Commit, Note, Read, Steps, Transaction, View
from journal.records import RestoredRow
from journal.values import Restored


def restored() -> Steps[Restored | None]:
    """The protocol of `Journal.restored`."""
    row: RestoredRow | None = yield Read(_row)
    if row is None:
        return None
    return Restored(row.incarnation, row.head, row.at, row.confirmed_at or None)


def confirm_restored() -> Steps[None]:
    """The protocol of `Journal.confirm_restored`."""
    row: RestoredRow | None = yield Read(_row)
    if row is None or row.confirmed_at:
        return
    confirmed: RestoredRow | None = yield Commit(_confirm)
    if confirmed is not None:
        yield Note("info", "journal_confirmed", {"incarnation": confirmed.incarnation, "head": confirmed.head})


def _row(view: View) -> RestoredRow | None:
    return view.restored()


def _confirm(txn: Transaction) -> RestoredRow | None:
    row = txn.restored()
    if row is None or row.confirmed_at:
        return None  # another process was faster
    confirmed = msgspec.structs.replace(row, confirmed_at=max(txn.at, 1))
    txn.save_restored(confirmed)
    return confirmed
