"""The work that the scripts give the journal: one operation type, keys and proofs of 40 bytes, fake recipients.

Everything here goes through the public contract alone.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

import journal
from benchmarks._baselines import PROOF
from journal import AsyncJournal, Committed, Intent, Journal, NotPerformed, Stats

Key = str | tuple[str | int, ...]

STREAM = "orders"
ACTION = "charge"
APPEND_GROUP = 100
SETTLE_GROUP = 4_096
THREAD_COUNT = 64
TASK_COUNT = 512


class Charge(msgspec.Struct, frozen=True):
    """An operation of ordinary size: about 70 bytes encoded."""

    order: str
    customer: str
    amount: int
    currency: str = "EUR"


def charge(number: int) -> Charge:
    """The operation with this number."""
    return Charge(order=f"order-{number:08}", customer=f"customer-{number % 997:04}", amount=100 + number % 9_900)


class SilentLogger:
    """Does nothing at any level."""

    def debug(self, event: str, **values: object) -> None:
        """Nothing."""

    def info(self, event: str, **values: object) -> None:
        """Nothing."""

    def warning(self, event: str, **values: object) -> None:
        """Nothing."""

    def error(self, event: str, **values: object) -> None:
        """Nothing."""


def open_journal(path: Path, *, logger: SilentLogger | None = None) -> Journal:
    """A journal of charges, with every other option at its default."""
    return journal.open(path, operation=Charge, logger=logger)


def fresh_key() -> str:
    """A random key of 40 bytes that no journal has."""
    return os.urandom(20).hex()


def send() -> str:
    """The recipient does it and names it: a proof of 40 bytes."""
    return PROOF


def refuse() -> str:
    """The recipient certainly did not do it."""
    raise NotPerformed("refused by the recipient")


def ask(signal: object) -> None:
    """The recipient has no record; no script gets here."""
    raise AssertionError(f"nothing to reconcile: {signal}")


def effects(j: Journal, keys: Iterable[Key]) -> None:
    """Brings every key to accepted, one after the other."""
    for key in keys:
        j.effect(key, run=send, reconcile=ask)


def effects_in_threads(j: Journal, pool: ThreadPoolExecutor, keys: Sequence[Key]) -> None:
    """Brings every key to accepted; every thread of the pool has its share and all start at once."""
    gate = threading.Barrier(THREAD_COUNT)

    def share(start: int) -> None:
        gate.wait()
        effects(j, keys[start::THREAD_COUNT])

    list(pool.map(share, range(THREAD_COUNT)))


async def send_from_task() -> str:
    """The recipient does it at once and names it: a proof of 40 bytes."""
    return PROOF


async def effects_in_tasks(a: AsyncJournal, keys: Sequence[Key]) -> None:
    """Brings every key to accepted; every task has its share."""

    async def share(start: int) -> None:
        for key in keys[start::TASK_COUNT]:
            await a.effect(key, run=send_from_task, reconcile=ask)

    async with asyncio.TaskGroup() as group:
        for start in range(TASK_COUNT):
            group.create_task(share(start))


def group_size(stats: Stats) -> str:
    """How many entries shared a commit, of a journal in which every effect has its outcome on record."""
    assert stats.unfinished == 0
    assert stats.entries == 2 * stats.effects
    return f"{stats.entries / stats.commits:.0f} entries a commit"


def append_charges(j: Journal, count: int, *, first: int = 0) -> None:
    """Appends charges `first` to `first + count - 1`, `APPEND_GROUP` in a transaction."""
    for start in range(first, first + count, APPEND_GROUP):
        numbers = range(start, min(start + APPEND_GROUP, first + count))
        j.append_all(STREAM, [(f"op-{number:010}", charge(number)) for number in numbers])


def settle_charges(j: Journal, effects_each: int) -> None:
    """Settles the effects that `intents_each(effects_each)` gives for all operations, many at a time."""
    operations = j.read()
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        while page := list(itertools.islice(operations, SETTLE_GROUP)):
            effects_in_threads(j, pool, [c.effect_key(ACTION, n) for c in page for n in range(effects_each)])


def intents_each(count: int) -> Callable[[Committed], list[Intent]]:
    """What `recover` takes: `count` effects for each operation, settled as by `effect`."""

    def intents(committed: Committed) -> list[Intent]:
        return [Intent(committed.effect_key(ACTION, number), run=send, reconcile=ask) for number in range(count)]

    return intents
