"""The recipient's memory: a SQLite file, durable before the recipient answers.

It knows nothing of the journal, and judges it in the end: what was performed is what stands here.
"""

import contextlib
import enum
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from journal.cli.demo.kinds import Kind

_SCHEMA = """
CREATE TABLE IF NOT EXISTS arrivals (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    operation TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    answer TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS arrivals_by_key ON arrivals (key, answer);
CREATE TABLE IF NOT EXISTS cancellations (
    key TEXT PRIMARY KEY,
    attempt INTEGER NOT NULL
);
"""


class Answer(enum.StrEnum):
    """What became of a request that arrived."""

    PERFORMED = "performed"
    REPEATED = "repeated"
    CANCELLED = "cancelled"


class Arrival(msgspec.Struct, frozen=True):
    """One request that arrived. `id` starts at 1; `operation` is the one that it was sent for."""

    id: int
    kind: Kind
    key: str
    operation: str
    attempt: int
    answer: Answer


class Store:
    """The durable store of one recipient, for the threads of one process; a context manager."""

    def __init__(self, path: Path) -> None:
        # The lock makes one connection safe for all threads of the server.
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def receive(self, kind: Kind, *, key: str, operation: str, attempt: int) -> Arrival:
        """Decide about a request and perform it where nothing forbids; durable when this returns.

        The answer of a repeated request has the id of the one that was performed.
        """
        with self._transaction() as db:
            performed_id = _find(db, key)
            cancelled = db.execute(
                "SELECT 1 FROM cancellations WHERE key = ? AND attempt >= ?", (key, attempt)
            ).fetchone()
            if cancelled:
                answer = Answer.CANCELLED
            elif performed_id is not None and kind is Kind.DEDUPLICATES:
                answer = Answer.REPEATED
            else:
                answer, performed_id = Answer.PERFORMED, None
            inserted = db.execute(
                "INSERT INTO arrivals (kind, key, operation, attempt, answer) VALUES (?, ?, ?, ?, ?)",
                (kind, key, operation, attempt, answer),
            )
            assert inserted.lastrowid is not None
            arrival_id = inserted.lastrowid if performed_id is None else performed_id
        return Arrival(arrival_id, kind, key, operation, attempt, answer)

    def find(self, key: str) -> int | None:
        """The id under which the key was performed first, or None."""
        with self._lock:
            return _find(self._db, key)

    def cancel(self, key: str, attempt: int) -> int | None:
        """Give the id where the key was performed, else refuse this and earlier attempts from now on.

        Both in one transaction: None proves that the attempt was not performed, and never will be.
        """
        with self._transaction() as db:
            performed_id = _find(db, key)
            if performed_id is None:
                db.execute(
                    "INSERT INTO cancellations (key, attempt) VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET attempt = max(attempt, excluded.attempt)",
                    (key, attempt),
                )
        return performed_id

    def arrivals(self) -> list[Arrival]:
        """Every request that arrived, in the order in which it was decided."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, kind, key, operation, attempt, answer FROM arrivals ORDER BY id"
            ).fetchall()
        return [
            Arrival(arrival_id, Kind(kind), key, operation, attempt, Answer(answer))
            for arrival_id, kind, key, operation, attempt, answer in rows
        ]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _find(db: sqlite3.Connection, key: str) -> int | None:
    row = db.execute("SELECT min(id) FROM arrivals WHERE key = ? AND answer = ?", (key, Answer.PERFORMED)).fetchone()
    found: int | None = row[0]
    return found
