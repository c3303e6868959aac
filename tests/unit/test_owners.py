"""`journal/_storage/owners.py`: whether another owner lives, by its lock and by its process."""

from __future__ import annotations

import fcntl
import io
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from journal._storage import owners
from journal._storage.owners import Owner, is_alive
from journal._storage.turn import FLOCK
from journal.records import OwnerRow

Open = Callable[[], int]
NO_PID: Final = 2**22 + 1
"""More than any process id of Linux."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the owners' file, as each handle does."""
    found: list[int] = []

    def open_file() -> int:
        found.append(os.open(tmp_path / "owners.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return found[-1]

    yield open_file
    for descriptor in found:
        try:
            os.close(descriptor)
        except OSError:
            continue


def changed(row: OwnerRow, **facts: Any) -> OwnerRow:
    """A row that says something else."""
    return msgspec.structs.replace(row, **facts)


def test_owner_says_which_process_it_is(opened: Open) -> None:
    """By pid and start time, boot and pid namespace, and the file that it has locked."""
    descriptor = opened()

    owner = Owner(descriptor)

    row = owner.row
    assert (row.pid, row.lock_inode) == (os.getpid(), os.fstat(descriptor).st_ino)
    assert row.started > 0
    assert row.namespace == Path("/proc/self/ns/pid").stat().st_ino
    assert row.boot == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    assert 0 < owner.id < 2**62


def test_owner_lives_while_its_file_is_open(opened: Open) -> None:
    """As seen from any other handle; closing it is the end."""
    mine, other = opened(), opened()
    owner = Owner(mine)
    assert is_alive(other, owner.id, owner.row)
    assert is_alive(other, owner.id, None)

    os.close(mine)

    assert not is_alive(other, owner.id, owner.row)
    assert not is_alive(other, owner.id, None)


def test_owners_have_bytes_of_their_own(opened: Open) -> None:
    """The end of one says nothing about another."""
    one, two, other = opened(), opened(), opened()
    first, second = Owner(one), Owner(two)

    os.close(one)

    assert first.id != second.id
    assert not is_alive(other, first.id, first.row)
    assert is_alive(other, second.id, second.row)
    assert not is_alive(other, second.id + 1, None)


def test_id_of_a_living_owner_is_not_taken_again(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers may repeat, and 0 stands for nobody."""
    drawn = iter([7, 7, 7, 0])
    monkeypatch.setattr(secrets, "randbits", lambda _: next(drawn))

    ids = [Owner(opened()).id, Owner(opened()).id]

    assert ids == [7, 1]


def test_lock_outlives_a_copy_of_the_directory(opened: Open, tmp_path: Path) -> None:
    """Opening and closing the file in the owner's own process does not drop it."""
    owner, other = Owner(opened()), opened()

    (tmp_path / "owners.lock").read_bytes()

    assert is_alive(other, owner.id, owner.row)


def test_lock_that_a_child_inherited_is_no_life(opened: Open) -> None:
    """A descriptor that outlives its process keeps the lock: then the process decides."""
    mine, other = opened(), opened()
    owner = Owner(mine)
    inherited = os.dup(mine)
    os.close(mine)
    try:
        assert is_alive(other, owner.id, None)
        assert is_alive(other, owner.id, owner.row)
        assert not is_alive(other, owner.id, changed(owner.row, pid=NO_PID))
        assert not is_alive(other, owner.id, changed(owner.row, started=owner.row.started - 1))
    finally:
        os.close(inherited)


def test_row_is_forgotten_only_of_who_is_gone_without_it_too(opened: Open) -> None:
    """Where the lock outlives the process, the row alone tells so; without it that owner would seem to live again."""
    mine, own = opened(), Owner(opened())
    other = Owner(mine)
    gone = changed(other.row, pid=NO_PID)
    inherited = os.dup(mine)
    assert not own.can_forget(other.id, other.row)

    os.close(mine)

    assert not own.sees_alive(other.id, gone)
    assert not own.can_forget(other.id, gone)
    os.close(inherited)
    assert own.can_forget(other.id, gone)
    assert own.can_forget(other.id, other.row)


@pytest.mark.parametrize("facts", [{"boot": "another"}, {"boot": ""}, {"namespace": 1}, {"started": 0}])
def test_process_that_cannot_be_seen_from_here_does_not_decide(opened: Open, facts: dict[str, Any]) -> None:
    """Of another boot or namespace, or without a start time: then the lock does."""
    mine, other = opened(), opened()
    owner = Owner(mine)
    hidden = changed(owner.row, pid=NO_PID, **facts)
    assert is_alive(other, owner.id, hidden)

    os.close(mine)

    assert not is_alive(other, owner.id, hidden)
    assert not is_alive(other, owner.id, changed(hidden, lock_inode=1))


def test_file_that_was_made_anew_leaves_the_process_to_decide(opened: Open, tmp_path: Path) -> None:
    """Somebody deleted it under a living owner: its lock is on a file that nobody sees any more."""
    owner = Owner(opened())
    (tmp_path / "owners.lock").unlink()
    # The new file must not be given the inode of the old one.
    other = opened()
    assert os.fstat(other).st_ino != owner.row.lock_inode

    assert is_alive(other, owner.id, owner.row)
    assert not is_alive(other, owner.id, changed(owner.row, pid=NO_PID))
    assert not is_alive(other, owner.id, None)


def test_owner_without_a_lock_in_this_file_is_gone(opened: Open) -> None:
    """Though its process runs: it closed the journal, or opened it again as another owner."""
    mine, other = opened(), opened()
    owner = Owner(mine)
    fcntl.fcntl(mine, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, owner.id, 1, 0))

    assert not is_alive(other, owner.id, owner.row)


@pytest.mark.parametrize("state, started", [("S", 4_711), ("R", 4_711), ("D", 4_711), ("T", 4_711), ("Z", 0), ("X", 0)])
def test_start_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch, state: str, started: int) -> None:
    """Whatever the command is called; a zombie is gone."""
    line = f"12 (odd ) name (x) {state} {' '.join(str(number) for number in range(18))} 4711 0 0\n"
    monkeypatch.setattr(owners, "open", lambda *_, **__: io.StringIO(line), raising=False)

    assert owners._started(12) == started


def test_process_that_is_gone_has_no_start() -> None:
    """There is no file of it."""
    assert owners._started(NO_PID) == 0


def test_machine_that_tells_nothing_has_no_second_witness(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the lock alone decides."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no")

    monkeypatch.setattr(owners, "open", refuse, raising=False)
    monkeypatch.setattr(owners, "_namespace", lambda: 0)
    mine, other = opened(), opened()

    owner = Owner(mine)

    assert (owner.row.boot, owner.row.started) == ("", 0)
    assert is_alive(other, owner.id, owner.row)
    os.close(mine)
    assert not is_alive(other, owner.id, owner.row)


def test_namespace_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox."""

    def refuse(_: str) -> Any:
        raise OSError("no")

    monkeypatch.setattr(os, "stat", refuse)

    assert owners._namespace() == 0
