"""`journal/_storage/examination.py` and `examiner.py`: a file's pages are looked at before its records are believed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

import journal
from journal._core.operations import append
from journal._core.rules import Rules
from journal._storage import examination, files
from journal._storage.examiner import main
from journal._storage.group import Entry
from journal._storage.store import Store
from journal.errors import CorruptRecordError
from journal.values import Finding
from tests.unit.golden import JOURNALS
from tests.unit.support import InThread, open_store, raising

PAGE_BYTES: Final = 4_096


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of format 1 with 33 records."""
    shutil.copy(JOURNALS[1], tmp_path)
    return tmp_path


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    """It is open."""
    opened = open_store(directory)
    yield opened
    opened.close()


def damage(directory: Path, offset: int, content: bytes) -> None:
    """Overwrite some bytes of the data file."""
    with (directory / files.DATA_FILE).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def a_leaf(directory: Path) -> int:
    """The offset of a leaf page of the newest state."""
    data = (directory / files.DATA_FILE).read_bytes()
    kind: Any = lmdb.verify._Verifier
    with (directory / files.DATA_FILE).open("rb") as file:
        verifier = kind(file, len(data))
        assert verifier.verify() == []
    for page in range(2, len(data) // PAGE_BYTES):
        start = page * PAGE_BYTES
        if verifier.live[page] and data[start + 10] == 2 and verifier.meta.free.root != page:
            return start
    raise AssertionError("there is none")


def test_sound_journal_needs_no_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is one started, nor is anything found."""
    monkeypatch.setattr(subprocess, "Popen", raising(AssertionError("a process")))

    assert list(store.verify()) == []


def test_damaged_page_is_found_and_the_records_are_read_elsewhere(store: Store, directory: Path) -> None:
    """The handle does not read what may end its process."""
    damage(directory, a_leaf(directory) + 12, b"\xff\xff")

    found = list(store.verify())

    assert found[0].table == "file"
    assert "page" in found[0].problem
    assert len(found) > 1


def test_process_that_dies_of_a_damaged_file_is_a_finding(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that takes too long."""
    monkeypatch.setattr(examination, "_START", f"import os; os.kill(os.getpid(), {signal.SIGBUS.value})")
    assert list(examination.in_child(str(directory), "all")) == [
        Finding("file", None, f"the process that looked at the all ended with -{signal.SIGBUS.value}")
    ]
    monkeypatch.setattr(examination, "_START", "import threading; threading.Event().wait()")
    monkeypatch.setattr(examination, "EXAMINATION_SECONDS_MAX", 0.01)

    assert list(examination.in_child(str(directory), "all")) == [
        Finding("file", None, "looking at the all took more than 0.01 seconds")
    ]


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python"])
def test_missing_interpreter_is_a_finding(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    """What the pages say is told; the records are not looked at."""
    damage(directory, a_leaf(directory) + 12, b"\xff\xff")
    monkeypatch.setattr(sys, "executable", executable)

    found = list(store.verify())

    assert found[-1].problem.startswith("no process could be started to look at the records")
    assert "page" in found[0].problem


def test_large_file_is_looked_at_by_a_process(store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking takes long, nothing of this process's waits for it."""
    monkeypatch.setattr(examination, "EXAMINATION_BYTES_MAX", 0)
    assert list(store.verify()) == []
    damage(directory, a_leaf(directory) + 12, b"\xff\xff")

    assert next(store.verify()).table == "file"


def test_abandoned_look_ends_its_process(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads only the first finding leaves nobody behind."""
    monkeypatch.setattr(
        examination,
        "_START",
        'import threading; print(\'["file", null, "one"]\', flush=True); threading.Event().wait()',
    )
    found = examination.in_child(str(directory), "all")
    assert next(found) == Finding("file", None, "one")

    found.close()  # type: ignore[attr-defined]  # it is a generator

    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_live_journal_is_sound_at_every_moment(store: Store) -> None:
    """While somebody commits, pages are used again; a look sees one state of them."""
    stop = False

    def commit() -> int:
        number = 0
        while not stop:
            number += 1
            store.commit(next(append("s", [(f"{number}", "x" * 500)], "", None, Rules())).decide)
        return number

    writer = InThread(commit)
    for _ in range(30):
        assert examination.pinned_problems(store._data_path, store._environment.read) == []
    stop = True

    assert writer.result() > 0
    assert list(store.verify()) == []


@pytest.mark.parametrize(
    "content, problem",
    [(b"", "meta"), (bytes(8192), "not an LMDB data file"), (b"\xff" * 100_000, "not an LMDB data file")],
    ids=["empty", "zeros", "noise"],
)
def test_file_that_cannot_be_opened_is_verified_by_its_path(directory: Path, content: bytes, problem: str) -> None:
    """What its pages say, and why it cannot be opened; nothing is changed."""
    file = directory / files.DATA_FILE
    file.write_bytes(content)

    found = list(journal.verify(directory))

    assert [finding.table for finding in found] == ["file", "file"]
    assert problem in found[0].problem or "not an LMDB" in found[0].problem
    assert "is not a journal that can be opened" in found[1].problem
    assert file.read_bytes() == content


def test_journal_is_verified_by_its_path(store: Store, directory: Path) -> None:
    """Open or not, sound or with a damaged record."""
    assert list(journal.verify(directory)) == []
    store.close()
    assert list(journal.verify(directory)) == []
    data = (directory / files.DATA_FILE).read_bytes()
    (directory / files.DATA_FILE).write_bytes(data.replace(b'"lines"', b'"lynes"'))

    assert ("log", 1) in {(finding.table, finding.position) for finding in journal.verify(directory)}


def test_missing_journal_is_no_sound_one(tmp_path: Path) -> None:
    """Told at the call."""
    with pytest.raises(FileNotFoundError):
        journal.verify(tmp_path / "nowhere")


@pytest.mark.parametrize("what", ["pages", "records", "all"])
def test_examiner_prints_a_line_for_each_finding(
    directory: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Of the part that it was asked for."""
    main(str(directory), what)
    assert capsys.readouterr().out == ""
    (directory / files.DATA_FILE).write_bytes(b"")

    main(str(directory), what)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == (2 if what == "all" else 1)
    assert {line[0] for line in lines} == {"file"}


def test_state_that_is_newer_than_the_transaction_is_not_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again, and where it never stands still, it is not called damaged."""
    looks: list[Callable[..., Any]] = []

    def read(look: Callable[..., Any]) -> Any:
        looks.append(look)
        return examination.problems_at(store._data_path, -1)

    assert examination.pinned_problems(store._data_path, read) == []
    assert len(looks) == examination._PIN_TRIES


@pytest.mark.parametrize("change", [1, -1])
def test_key_of_a_branch_that_misleads_is_found(tmp_path: Path, change: int) -> None:
    """Each page is sound in itself, and a search would be led past what is there."""
    store = open_store(tmp_path)
    store._commit_batch(
        [
            Entry(next(append("s", [(f"{n}", "x" * 300)], "", None, Rules())).decide, 0, 1e18, settles=False)
            for n in range(90)
        ]
    )
    assert list(store.verify()) == []
    kind: Any = lmdb.verify._Verifier
    with (tmp_path / files.DATA_FILE).open("rb") as file:
        verifier = kind(file, os.fstat(file.fileno()).st_size)
        assert verifier.verify() == []
        root = verifier.meta.main.root * PAGE_BYTES
        file.seek(root)
        page = file.read(PAGE_BYTES)
    assert page[10] == 1
    node = int.from_bytes(page[22:24], "little")
    key_bytes = int.from_bytes(page[node + 6 : node + 8], "little")
    last = node + 8 + key_bytes - 1
    damage(tmp_path, root + last, bytes([page[last] + change]))

    found = list(store.verify())
    store.close()

    assert "keys that the branch above it does not lead to" in found[0].problem


def test_empty_journal_has_sound_pages(tmp_path: Path) -> None:
    """With a tree of one page, or of none."""
    store = open_store(tmp_path)
    assert list(store.verify()) == []
    store.close()
    with lmdb.open(str(tmp_path / "empty"), lib_version=0):
        assert examination.problems_at(str(tmp_path / "empty" / "data.mdb"), None) == []


@pytest.mark.parametrize("key", [b"\xff" * 8, b"\xff" * 10])
def test_key_of_the_log_that_is_none_is_refused(directory: Path, key: bytes) -> None:
    """A damaged length of a key is told as damage, whoever comes to it."""
    with lmdb.open(str(directory), lib_version=0) as env, env.begin(write=True) as txn:
        txn.put(key, b"v")
    store = open_store(directory, readonly=True)

    for look in (lambda view: view.head(), lambda view: view.operations(None, 33, 10)):
        with pytest.raises(CorruptRecordError, match="a record of the log has a key of"):
            store.read(look)
    assert {finding.table for finding in store.verify()} == {"log"}
    store.close()
