"""`verify` on a file that may be damaged: its pages first, in plain Python, and its records where nothing can be harmed.

LMDB believes its pages: a damaged one can make it read past the end of the file, which ends the process with SIGBUS. So the
binding's own verifier, which reads the file byte by byte and hands nothing to LMDB, goes first. Where it finds something, or
the journal cannot be opened, the records are looked at in a process of their own, whose death is a finding as well.
`python -c` starts it with this process's import path; it inherits no lock and no descriptor.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import lmdb
import lmdb.verify

from journal._storage.files import DATA_FILE
from journal.options import EXAMINATION_BYTES_MAX, EXAMINATION_SECONDS_MAX
from journal.values import Finding

T = TypeVar("T")
Read = Callable[[Callable[[lmdb.Transaction], T]], T]

_FILE: Final = "file"
_PIN_TRIES: Final = 100
_PAGE_HEADER_BYTES: Final = 16
_PAGE: Final = struct.Struct("<10xHH")
"""Of LMDB 0.9's `MDB_page`: flags, and where the list of rows ends."""
_BRANCH: Final = 1
_SLOT: Final = struct.Struct("<H")
_NODE: Final = struct.Struct("<HHHH")
"""LMDB 0.9's `MDB_node`: three parts of a page's number (in a leaf: length and flags), bytes of the key."""
_META_BYTES: Final = 2 * 65_536
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from journal._storage.examiner import main; main(*sys.argv[2:])"
)


def examined(directory: str, read: Read[Any], walk: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What is wrong with an open journal: with its pages, and then with its records."""
    path = os.path.join(directory, DATA_FILE)
    is_damaged = False
    for finding in _page_findings(directory, path, read):
        is_damaged = True
        yield finding
    yield from in_child(directory, "records") if is_damaged else walk()


def examine(directory: str) -> Iterator[Finding]:
    """What is wrong with a journal that nobody here need have open, found by a process of its own.

    Raises:
        FileNotFoundError: no data file is there.
    """
    os.stat(os.path.join(directory, DATA_FILE))
    return in_child(directory, "all")


def _page_findings(directory: str, path: str, read: Read[Any]) -> Iterator[Finding]:
    if os.stat(path).st_size <= EXAMINATION_BYTES_MAX:
        # At once, while a transaction keeps the pages from being used again; longer ones would hold up a growing map.
        yield from [Finding(_FILE, None, problem) for problem in pinned_problems(path, read)]
    else:
        yield from in_child(directory, "pages")


def pinned_problems(path: str, read: Read[Any]) -> list[str]:
    """What is wrong with the pages of the newest state, which a read transaction keeps as they are meanwhile."""
    for _ in range(_PIN_TRIES):
        found: list[str] | None = read(lambda txn: problems_at(path, txn.id()))
        if found is not None:
            return found
    return []  # who commits so fast has a file that LMDB can read; what is wrong with its records is found by the walk


def problems_at(path: str, transaction: int | None) -> list[str] | None:
    """What is wrong with the pages of one state, or of any; `None` where the file's first pages are of a newer one."""
    with open(path, "rb") as file:
        first = file.read(_META_BYTES)
        size = os.fstat(file.fileno()).st_size
        kind: Any = lmdb.verify._Verifier  # noqa: SLF001 - its public face takes a path alone
        verifier = kind(_Pinned(file, first), size)
        try:
            problems: list[str] = verifier.verify() or _separator_problems(verifier)
        except lmdb.verify.VerifyError as error:
            return [str(error)]
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of the verifier, it is damaged
            return [f"{type(error).__name__}: {error}"]
        return problems if transaction in (None, verifier.meta.txnid) else None


def _separator_problems(verifier: Any) -> list[str]:
    """What is wrong with the keys in the tree's branches, which the binding's verifier does not hold against the leaves."""
    found = []
    todo: list[tuple[int, bytes, bytes | None]] = []
    if verifier.meta.main.depth:
        todo.append((verifier.meta.main.root, b"", None))
    while todo:
        page, low, high = todo.pop()
        data = verifier.read_page(page)
        flags, lower = _PAGE.unpack_from(data)
        nodes = [_node(data, slot) for slot in range(_PAGE_HEADER_BYTES, lower, 2)]
        if flags & _BRANCH:
            # The first one has no key of its own: it holds whatever comes before the second.
            keys = [low, *(key for _, key in nodes[1:])]
            todo += zip((child for child, _ in nodes), keys, [*keys[1:], high], strict=True)
        else:
            keys = [key for _, key in nodes]
        if keys and (keys[0] < low or (high is not None and keys[-1] >= high)):
            found.append(f"page {page} has keys that the branch above it does not lead to")
    return found


def _node(data: bytes, slot: int) -> tuple[int, bytes]:
    """Of a row in a page: the child's number, where it is a branch, and the key."""
    (place,) = _SLOT.unpack_from(data, slot)
    low, middle, high, key_bytes = _NODE.unpack_from(data, place)
    return low | middle << 16 | high << 32, data[place + _NODE.size : place + _NODE.size + key_bytes]


class _Pinned:
    """A file whose first bytes are those of a moment."""

    def __init__(self, file: io.BufferedReader, first: bytes) -> None:
        self._file = file
        self._first = first
        self._offset = 0

    def seek(self, offset: int) -> None:
        self._offset = offset

    def read(self, count: int) -> bytes:
        if self._offset + count <= len(self._first):
            return self._first[self._offset : self._offset + count]
        self._file.seek(self._offset)
        return self._file.read(count)


def in_child(directory: str, what: str) -> Iterator[Finding]:
    """What a process of its own finds: in the pages, in the records, or in both (`all`)."""
    arguments = [sys.executable or "", "-c", _START, json.dumps(sys.path), directory, what]
    try:
        child = subprocess.Popen(  # noqa: S603 - this interpreter with our own module
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError as error:
        yield Finding(_FILE, None, f"no process could be started to look at the {what} ({error})")
        return
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        child.kill()

    timer = threading.Timer(EXAMINATION_SECONDS_MAX, end)
    timer.daemon = True
    timer.start()
    try:
        assert child.stdout is not None  # noqa: S101 - it was asked for
        for line in child.stdout:
            yield Finding(*json.loads(line))
        status = child.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(OSError):
            child.kill()
        child.communicate()
    if is_late.is_set():
        yield Finding(_FILE, None, f"looking at the {what} took more than {EXAMINATION_SECONDS_MAX} seconds")
    elif status:
        yield Finding(_FILE, None, f"the process that looked at the {what} ended with {status}")
