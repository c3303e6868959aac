"""What the journal is measured against: L, B and the plain ways to scan and look up.

L is the same bytes appended to a zero-written file with one fdatasync for each record: the physical limit of a lone
caller. B is the same bytes put into a bare LMDB with one commit for each, in the form that writes the fewest pages: the
environment's unnamed table, keys in ascending order. Knows nothing of the journal.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol

import lmdb
import msgspec

from benchmarks._measure import Contestant

Allocation = Literal["growing", "fallocate", "zeros"]

ALLOCATED_BYTES = 32 << 20
"""More than any layout writes, so that no slice pays for an allocation."""
LIMIT_BYTES = 8 << 20
"""More than any L writes."""
MAP_BYTES = 8 << 30
KEY_BYTES = 40
PROOF = "message-4711-0123456789abcdef-0123456789"
DIGEST = bytes(range(20))
OWNER = bytes(12)
AT = 1_750_000_000_000_000_000

ENCODER = msgspec.msgpack.Encoder()


class Record(msgspec.Struct, array_like=True):
    """A log record of the size that an effect needs: about 80 bytes for an intent, 120 with a proof."""

    phase: int
    key: bytes
    at: int
    owner: bytes
    attempt: int
    proof: str | None = None


def fresh_key() -> bytes:
    """A random key of `KEY_BYTES` bytes that no store has."""
    return os.urandom(KEY_BYTES)


def intent_record(key: bytes) -> bytes:
    """The record of an intent and its digest."""
    return ENCODER.encode(Record(1, key, AT, OWNER, 1)) + DIGEST


def accepted_record(key: bytes) -> bytes:
    """The record of an outcome with its proof, and its digest."""
    return ENCODER.encode(Record(2, key, AT, OWNER, 1, PROOF)) + DIGEST


def allocate(path: Path, how: Allocation, size: int = ALLOCATED_BYTES) -> None:
    """Makes the file `size` bytes long, durably, keeping what is in it."""
    if how == "growing":
        return
    with path.open("r+b") as file:
        if how == "fallocate":
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.seek(0, os.SEEK_END)
            file.write(bytes(size - file.tell()))
        file.flush()
        os.fsync(file.fileno())


class Store(Protocol):
    """Something that makes one record durable."""

    def commit(self, record: bytes) -> None:
        """Returns when the record would survive a power loss."""


class Limit:
    """L: each record appended to a zero-written file, then one fdatasync."""

    def __init__(self, path: Path) -> None:
        path.touch()
        allocate(path, "zeros", LIMIT_BYTES)
        self._descriptor = os.open(path, os.O_WRONLY)
        self._offset = 0

    def commit(self, record: bytes) -> None:
        """Appends one record, durably."""
        self._offset += os.pwrite(self._descriptor, record, self._offset)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class Bare:
    """B: records put into a bare LMDB under ascending positions; also the plain scan and look-up over them."""

    def __init__(self, directory: Path, allocation: Allocation = "growing") -> None:
        self._env = lmdb.open(os.fspath(directory), map_size=MAP_BYTES, mode=0o600, lib_version=0)
        allocate(directory / "data.mdb", allocation)
        self._head = 0

    def commit(self, record: bytes) -> None:
        """Puts one record, durably."""
        self.commit_all([record])

    def commit_all(self, records: Iterable[bytes]) -> None:
        """Puts all records in one transaction, durably."""
        with self._env.begin(write=True) as txn:
            for record in records:
                self._head += 1
                txn.put(self._head.to_bytes(8), record, append=True)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Puts rows under keys of their own, in one transaction."""
        with self._env.begin(write=True) as txn:
            for key, value in rows:
                txn.put(key, value)

    def scan(self, decode: Callable[[bytes], object]) -> int:
        """Decodes every value in the order of the keys; how many there were."""
        count = 0
        with self._env.begin() as txn:
            for _, value in txn.cursor():
                decode(value)
                count += 1
        return count

    def look_up(self, key: bytes, decode: Callable[[bytes], object]) -> object:
        """Decodes the value of one key, through a read transaction of its own."""
        with self._env.begin() as txn:
            value = txn.get(key)
        assert value is not None
        return decode(value)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def two_records_each(store: Store, effect_count: int) -> Contestant:
    """Makes the intent and the outcome of `effect_count` effects durable, one after the other."""

    def work() -> int:
        for _ in range(effect_count):
            key = fresh_key()
            store.commit(intent_record(key))
            store.commit(accepted_record(key))
        return effect_count

    return Contestant(work)
