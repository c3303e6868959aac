"""One process that has the journal open and shares work among others: `python -m tests.servers.pools METHOD WAY`.

METHOD is how multiprocessing starts a process, WAY how the work is shared. Each other process opens for itself. Prints
the answers as JSON.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import journal

from . import payments

COUNT = 3
NAMES = ["first", "second", "third"]
SHARED = ["shared"] * 9

_own: journal.Journal


def begin() -> None:
    """The initializer of a pool's process: a handle of its own, for as long as it lives."""
    global _own
    _own = payments.open_journal()


def pay(name: str) -> dict[str, Any]:
    """A task of a pool."""
    return payments.pay(_own, name, 100)


def pay_alone(name: str, answers: Any) -> None:
    """The target of a process of its own."""
    with payments.open_journal() as own:
        for each in (name, *SHARED[:COUNT]):
            answers.put(payments.pay(own, each, 100))


def by_processes(context: Any) -> list[dict[str, Any]]:
    """A process for each name."""
    answers = context.Queue()
    processes = [context.Process(target=pay_alone, args=(name, answers)) for name in NAMES]
    for process in processes:
        process.start()
    paid = [answers.get() for _ in NAMES for _ in range(1 + COUNT)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return paid


def by_pool(context: Any) -> list[dict[str, Any]]:
    """A `multiprocessing.Pool`."""
    with context.Pool(COUNT, initializer=begin) as pool:
        paid: list[dict[str, Any]] = pool.map(pay, NAMES + SHARED, chunksize=1)
        pool.close()
        pool.join()
    return paid


def by_executor(context: Any) -> list[dict[str, Any]]:
    """A `ProcessPoolExecutor`."""
    with ProcessPoolExecutor(COUNT, mp_context=context, initializer=begin) as pool:
        return list(pool.map(pay, NAMES + SHARED))


WAYS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "Process": by_processes,
    "Pool": by_pool,
    "ProcessPoolExecutor": by_executor,
}


def main(method: str, way: str) -> None:
    """Pays in this process before the others begin and after they have ended, over one handle."""
    with payments.open_journal() as j:
        before = payments.pay(j, "before", 100)
        paid = WAYS[way](multiprocessing.get_context(method))
        after = payments.pay(j, "after", 100)
    print(json.dumps({"before": before, "paid": paid, "after": after}))


if __name__ == "__main__":
    main(*sys.argv[1:])
