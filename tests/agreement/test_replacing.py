"""`vacuum` and `rebuild`: another file in the place of the one that is open, beside everything that goes on."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal import Accepted, Journal, JournalBusyError, JournalLockedError, JournalReadonlyError

from .support import Call, Gate, Peer, accept, data_file, leave_failed, leave_uncertain, phases, unused

Open = Callable[..., Journal]
Start = Callable[..., Peer]
ACTS = ["vacuum", "rebuild"]


@pytest.fixture(params=ACTS)
def act(request: pytest.FixtureRequest) -> Callable[[Journal], Any]:
    """Both that replace the file."""
    name: str = request.param
    return lambda j: getattr(j, name)()


def fill(j: Journal) -> None:
    """Leaves something of everything."""
    j.append_all("s", [(f"{number}", "x" * 2_000) for number in range(200)])
    accept(j, "accepted")
    leave_failed(j, "failed")
    leave_uncertain(j, "uncertain")
    j.step("step", lambda: 5)
    j.save_cursor("c", 7)


def contents(j: Journal) -> list[Any]:
    return [list(j.read()), list(j.effects()), j.step("step", unused()), j.cursor("c"), j.head(), j.streams()]


def test_everything_is_there_afterwards(j: Journal, open_journal: Open, act: Callable[[Journal], Any]) -> None:
    """In this handle, and in the next one."""
    fill(j)
    before = contents(j)

    act(j)

    assert contents(j) == before
    assert list(j.verify()) == []
    j.append("s", "later", op_id="later")
    j.close()
    again = open_journal()
    assert again.head() == before[-2] + 1
    assert again.append("s", "x" * 2_000, op_id="5").sequence == 6


def test_vacuum_says_what_the_disk_has_back(j: Journal, path: Path) -> None:
    """The file is smaller by just that."""
    for number in range(50):
        j.append("s", "x" * 5_000, op_id=f"{number}")
    before = data_file(path).stat().st_size

    saved = j.vacuum()

    assert saved == before - data_file(path).stat().st_size > 0
    assert j.stats().file_bytes == before - saved


def test_effect_in_flight_records_its_outcome_afterwards(j: Journal, act: Callable[[Journal], Any]) -> None:
    """It has its owner still, and nobody takes it for given up."""
    gate = Gate()
    running = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()

    act(j)
    gate.open()

    assert running.result() == Accepted("proof", "run")
    assert phases(j, "k") == ["intent", "accepted"]


def test_calls_in_other_threads_go_on(j: Journal, act: Callable[[Journal], Any]) -> None:
    """Reads, appends and effects, before and after and in between: no wrong answer, and no error."""
    is_over = threading.Event()

    def work(number: int) -> int:
        count = 0
        while not is_over.is_set():
            count += 1
            c = j.append(f"s{number}", count, op_id=f"{count}")
            assert c.sequence == count
            assert [one.operation for one in j.read(f"s{number}", after=c.position - 1)] == [count]
            accept(j, ("e", number, count))
        return count

    working = [Call(lambda number=number: work(number)) for number in range(3)]  # type: ignore[misc]  # its own number
    for _ in range(4):
        act(j)
    is_over.set()
    counts = [one.result() for one in working]

    assert [len(list(j.read(f"s{number}"))) for number in range(3)] == counts
    assert list(j.verify()) == []


def test_reader_that_began_before_goes_on(j: Journal, act: Callable[[Journal], Any]) -> None:
    """An iterator is in no transaction between two pages."""
    fill(j)
    reading = iter(j.read())
    first = next(reading)

    act(j)

    assert [first, *reading] == list(j.read())


@pytest.mark.parametrize("readonly", [False, True])
def test_other_process_is_in_the_way_until_it_closes(
    j: Journal, start_peer: Start, act: Callable[[Journal], Any], *, readonly: bool
) -> None:
    """The error names it, and says what to do; nothing has changed."""
    fill(j)
    before = contents(j)
    peer = start_peer("hold", readonly=readonly)
    peer.hear("opened")

    with pytest.raises(JournalBusyError, match="close it there, then try again") as caught:
        act(j)
    assert caught.value.pid == peer.pid
    assert contents(j) == before

    peer.tell("close")
    peer.hear("closed")
    act(j)
    assert contents(j) == before


def test_child_that_outlives_its_parents_handle_is_not_in_the_way(
    j: Journal, start_peer: Start, act: Callable[[Journal], Any]
) -> None:
    """It has let go of what it inherited."""
    peer = start_peer("close_before_the_child")
    peer.hear("closed")

    act(j)

    peer.tell("")


def test_fork_beside_it_hangs_nobody(start_peer: Start) -> None:
    """Whatever is open at the fork, the child can open the journal, by whichever file has the name then."""
    peer = start_peer("fork_and_replace")
    said = peer.hear("parent")

    assert said["statuses"] == [3] * 30
    assert said["operations"] == list(range(30))
    assert said["findings"] == 0
    peer.finish()


def test_process_that_comes_meanwhile_waits(j: Journal, start_peer: Start, act: Callable[[Journal], Any]) -> None:
    """It opens the file that has the name when that is decided, and both see each other's records."""
    fill(j)
    peers = [start_peer("append", stream="p", op_ids=[f"{number}"]) for number in range(3)]
    refused = 0
    for _ in range(20):
        try:
            act(j)
        except JournalBusyError:
            refused += 1
    for peer in peers:
        peer.hear("opened")
        peer.hear("appended")

    assert sorted(c.operation["op"] for c in j.read("p")) == ["0", "1", "2"]
    assert list(j.verify()) == []


def test_handle_is_the_only_one_of_its_process_afterwards(
    j: Journal, open_journal: Open, act: Callable[[Journal], Any]
) -> None:
    """By the file that has the name now."""
    act(j)

    with pytest.raises(JournalLockedError):
        open_journal()


def test_read_only_handle_is_refused(j: Journal, open_journal: Open, act: Callable[[Journal], Any]) -> None:
    """It writes nothing."""
    j.close()

    with pytest.raises(JournalReadonlyError):
        act(open_journal(readonly=True))
