"""`journal/_core/states.py`: how a state is brought to the head of its stream, request by request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from journal._core import operations, states
from journal._core.hooks import refuse_calls
from journal._core.requests import Commit, Decide, OperationPage, Read
from journal._core.rules import Reducer, Rules
from journal._core.schemas import Schema
from journal._core.states import StateAt
from journal._states import States
from journal.errors import CorruptRecordError, InvalidOperationError
from journal.options import PAGE_RECORDS
from journal.records import CompactionRecord, SnapshotRow, StreamRow
from journal.values import Committed, Cursor, Finding, Loaded
from tests.unit.support import START, Memory, Play


def rules(every: int = 100, *, version: int = 1, **options: Any) -> Rules:
    """A list of all operations, remembered within wide bounds."""
    reducer = Reducer(list, lambda state, operation: [*state, operation], list[Any], every, version)
    return Rules(**{"reducer": reducer, "states": States(bytes_max=10_000, count_max=10), **options})


def append(memory: Memory, rules: Rules, *numbers: int) -> Play[Any]:
    return Play(operations.append("s", [(str(n), n) for n in numbers], "", None, rules), memory)


def filled(*numbers: int, page_records: int = 1_000) -> Memory:
    memory = Memory()
    for number in numbers:
        memory.put_operation(str(number), number)
    memory.page_records = page_records
    return memory


class Reset(Memory):
    """A journal whose stream is in its second epoch, which begins after a position."""

    epoch_position = 0

    def stream(self, name: str) -> StreamRow | None:
        return StreamRow(2, self.epoch_position) if self.epoch_position else super().stream(name)

    def sequence(self, name: str) -> int:
        return super().sequence(name) if not self.epoch_position else 0


# Load


def test_load_reads_page_by_page_and_applies_outside() -> None:
    """Each page in a read of its own, and the application's functions in none."""
    memory = filled(1, 2, 3, page_records=2)
    play = Play(states.load("s", rules()), memory)

    play.run(Read, Decide, Read, Decide)

    assert play.returned == Loaded([1, 2, 3], Cursor(3), 3)


def test_load_begins_with_what_is_remembered() -> None:
    """And remembers what it came to."""
    memory, both = filled(1, 2), rules()
    Play(states.load("s", both), memory).finish()
    memory.put_operation("3", 3)
    play = Play(states.load("s", both), memory)
    look = play.expect(Read).look(memory)
    play.run(Read, Decide)

    assert look.at == StateAt(1, 2, 2, 0, b"[1,2]")
    assert [stored.position for stored in look.page.operations] == [3]
    assert both.states.get("s") == StateAt(1, 3, 3, 0, b"[1,2,3]")
    assert play.returned == Loaded([1, 2, 3], Cursor(3), 3)


def test_load_needs_a_reducer() -> None:
    """And says so before it asks for anything."""
    with pytest.raises(TypeError, match="needs a reducer"):
        Play(states.load("s", Rules()), Memory())


@pytest.mark.parametrize(
    "row, begins",
    [
        (SnapshotRow(1, 2, 2, 1, b'["kept"]', 0), ["kept", 3]),
        (SnapshotRow(1, 2, 2, 2, b'["kept"]', 0), [1, 2, 3]),
        (SnapshotRow(2, 2, 2, 1, b'["kept"]', 0), [1, 2, 3]),
        (SnapshotRow(1, 2, 2, 1, b'"kept"', 0), [1, 2, 3]),
        (SnapshotRow(1, 2, 2, 1, b"no json", 0), [1, 2, 3]),
        (None, [1, 2, 3]),
    ],
)
def test_snapshot_is_used_where_it_is_of_this_reducer(row: SnapshotRow | None, begins: list[Any]) -> None:
    """Of the present epoch, of its version, and of its type."""
    memory = filled(1, 2, 3)
    if row is not None:
        memory.snapshots["s"] = row

    assert Play(states.load("s", rules()), memory).finish().state == begins


def test_snapshot_far_ahead_of_what_is_remembered_is_used() -> None:
    """Another process was busy: its snapshot is nearer than the log."""
    memory, both = filled(*range(7)), rules(2)
    memory.snapshots["s"] = SnapshotRow(1, 5, 5, 1, b'["kept"]', 0)
    both.states.put("s", StateAt(1, 2, 2, 0, b"[0,1]"))

    assert Play(states.load("s", both), memory).finish().state == ["kept", 5, 6]


@pytest.mark.parametrize("state", [b'["kept"]', b"unreadable"])
def test_snapshot_behind_what_is_remembered_is_not_used(state: bytes) -> None:
    """Whether or not it can be read."""
    memory, both = filled(*range(7)), rules(2)
    memory.snapshots["s"] = SnapshotRow(1, 2, 2, 1, state, 0)
    both.states.put("s", StateAt(1, 3, 3, 0, b"[0,1,2]"))

    assert Play(states.load("s", both), memory).finish().state == list(range(7))


def test_unreadable_snapshot_ahead_falls_back_to_what_is_remembered() -> None:
    """And is marked to be replaced."""
    memory, both = filled(*range(7)), rules(2)
    memory.snapshots["s"] = SnapshotRow(1, 5, 5, 1, b"unreadable", 0)
    both.states.put("s", StateAt(1, 2, 2, 0, b"[0,1]"))

    assert Play(states.load("s", both), memory).finish().state == list(range(7))
    at = both.states.get("s")
    assert at is not None
    assert at.kept is None


class WithoutSnapshots(Memory):
    """A journal whose snapshots cannot be read."""

    def snapshot(self, name: str) -> SnapshotRow | None:
        raise CorruptRecordError(None, "its checksum is wrong")


def test_damaged_snapshot_is_done_without() -> None:
    """What it says can be had from the log."""
    memory = WithoutSnapshots()
    memory.put_operation("1", 1)

    assert Play(states.load("s", rules()), memory).finish().state == [1]


@pytest.mark.parametrize("row", [None, SnapshotRow(1, 1, 1, 1, b"[1]", 0), SnapshotRow(1, 2, 2, 9, b"[1,2]", 0)])
def test_state_below_the_floor_cannot_be_rebuilt(row: SnapshotRow | None) -> None:
    """Without a snapshot of this version at the floor or after; what is remembered below it is no help."""
    memory, both = filled(1, 2, 3), rules()
    memory.append(CompactionRecord("s", 1, 2, START, 2))
    both.states.put("s", StateAt(1, 1, 1, 0, b"[1]"))
    if row is not None:
        memory.snapshots["s"] = row

    with pytest.raises(CorruptRecordError, match=r"cannot be rebuilt.*version 1.*position 2") as caught:
        Play(states.load("s", both), memory).finish()

    assert caught.value.stream == "s"


@pytest.mark.parametrize("way", ["remembered", "kept"])
def test_state_at_the_floor_goes_on(way: str) -> None:
    """Nothing at or below the floor is needed for it."""
    memory, both = filled(1, 2, 3), rules()
    memory.append(CompactionRecord("s", 1, 2, START, 2))
    if way == "kept":
        memory.snapshots["s"] = SnapshotRow(1, 2, 2, 1, b'["floor"]', 0)
    else:
        both.states.put("s", StateAt(1, 2, 2, 0, b'["floor"]'))

    assert Play(states.load("s", both), memory).finish().state == ["floor", 3]


def test_reset_between_two_pages_begins_anew() -> None:
    """What was folded was of the epoch before."""
    memory = Reset()
    for number in (1, 2, 3):
        memory.put_operation(str(number), number)
    memory.page_records = 2
    play = Play(states.load("s", rules()), memory)
    play.run(Read, Decide)
    memory.epoch_position = 3

    play.does(Read, states.Tail(2, 0, None, None, OperationPage([], 3, True)))
    play.run(Decide)

    assert play.returned == Loaded([], Cursor(0), 0)


@pytest.mark.parametrize("damage", ["gap", "end"])
def test_operations_that_do_not_follow_each_other_are_damage(damage: str) -> None:
    """A state is never one that leaves an operation out."""
    memory = filled(1, 2, 3)
    if damage == "gap":
        record, payload = memory.log[1]
        memory.log[1] = (msgspec.structs.replace(record, sequence=7), payload)
    else:
        memory.sequence = lambda name: len(name) + 3  # type: ignore[method-assign]  # what its index says

    with pytest.raises(CorruptRecordError) as caught:
        Play(states.load("s", rules()), memory).finish()

    assert caught.value.stream == "s"


def test_functions_of_the_application_may_not_call_a_journal() -> None:
    """Nor may a type's own code that decodes a snapshot."""
    memory = filled(1)
    calling = Reducer(list, lambda *_: refuse_calls(), Any)

    with pytest.raises(InvalidOperationError, match="may not call a journal"):
        Play(states.load("s", rules(reducer=calling)), memory).finish()


# Append


def test_append_to_an_empty_stream_is_one_commit() -> None:
    """It has no state to be brought up."""
    play = append(Memory(), rules(), 1, 2)

    play.run(Commit)

    assert [answer.operation for answer in play.returned] == [1, 2]


def test_append_brings_the_state_up_first_where_nothing_is_remembered() -> None:
    """The commit says so, writes nothing, and is asked for again."""
    memory, both = filled(1, 2), rules()
    play = append(memory, both, 3)

    play.run(Commit)
    assert memory.head() == 2
    play.run(Read, Decide, Commit)

    assert memory.states["s"] == StateAt(1, 3, 3, 0, b"[1,2,3]")


def test_append_with_the_state_remembered_is_one_commit() -> None:
    """What others appended meanwhile is applied within it."""
    memory, both = filled(1, 2), rules()
    both.states.put("s", StateAt(1, 1, 1, 0, b"[1]"))
    play = append(memory, both, 3)

    play.run(Commit)

    assert memory.states["s"].state == b"[1,2,3]"


def test_tail_of_more_than_a_page_is_brought_up_outside() -> None:
    """No transaction applies more than a page of operations."""
    memory, both = filled(1, 2, 3, page_records=1), rules()
    both.states.put("s", StateAt(1, 1, 1, 0, b"[1]"))
    play = append(memory, both, 4)

    play.run(Commit, Read, Decide, Read, Decide, Commit)

    assert memory.states["s"].state == b"[1,2,3,4]"


def test_state_is_brought_up_for_one_who_remembers_nothing() -> None:
    """With a cache of nothing the commit uses what was just read, and what others appended since."""
    memory = filled(1)
    play = append(memory, rules(states=States(bytes_max=0, count_max=0)), 4)
    play.run(Commit, Read, Decide)
    memory.put_operation("2", 2)

    play.run(Commit)

    assert memory.states["s"].state == b"[1,2,4]"


def test_decisions_of_one_commit_build_on_each_other() -> None:
    """The next one applies nothing of what the one before has applied."""
    memory = Memory()
    applied: list[int] = []

    def apply(state: int, operation: int) -> int:
        applied.append(operation)
        return state + operation

    counting = Reducer(lambda: 0, apply, int)
    both = rules(reducer=counting)
    decisions = [append(memory, both, number).expect(Commit).decide for number in range(5)]

    memory.commit(lambda txn: [decide(txn) for decide in decisions])

    assert applied == list(range(5))
    assert memory.states["s"] == StateAt(1, 5, 5, 0, b"10")


def test_refused_operation_leaves_what_the_commit_knows() -> None:
    """Those after it go on from there."""
    memory = Memory()
    both = rules(validate=lambda operation, _: 1 / operation)
    decisions = [append(memory, both, *numbers).expect(Commit).decide for numbers in ((1,), (2, 0), (3,))]

    def decide_all(txn: Any) -> None:
        decisions[0](txn)
        with pytest.raises(InvalidOperationError):
            decisions[1](txn)
        decisions[2](txn)

    memory.commit(decide_all)

    assert memory.states["s"].state == b"[1,3]"
    assert memory.head() == 2


def test_what_is_remembered_below_the_floor_is_brought_up_anew() -> None:
    """Though the tail is short."""
    memory, both = filled(1, 2, 3), rules()
    memory.append(CompactionRecord("s", 1, 2, START, 2))
    memory.snapshots["s"] = SnapshotRow(1, 2, 2, 1, b'["floor"]', 0)
    both.states.put("s", StateAt(1, 1, 1, 0, b"[1]"))
    play = append(memory, both, 4)

    play.run(Commit, Read, Decide, Commit)

    assert memory.states["s"].state == b'["floor",3,4]'


def test_what_is_remembered_at_the_floor_goes_on() -> None:
    """Within the commit."""
    memory, both = filled(1, 2), rules()
    memory.append(CompactionRecord("s", 1, 1, START, 1))
    both.states.put("s", StateAt(1, 1, 1, 0, b'["floor"]'))

    append(memory, both, 4).run(Commit)

    assert memory.states["s"].state == b'["floor",2,4]'


def test_what_is_remembered_of_another_epoch_is_not_used() -> None:
    """The stream begins anew."""
    memory, both = Reset(), rules()
    memory.put_operation("1", 1)
    memory.epoch_position = 1
    both.states.put("s", StateAt(1, 1, 1, 0, b"[1]"))

    append(memory, both, 4).run(Commit)

    assert (memory.states["s"].epoch, memory.states["s"].state) == (2, b"[4]")


def test_index_that_disagrees_with_what_is_remembered_is_damage() -> None:
    """Nothing is appended on a state that leaves an operation out."""
    memory, both = filled(1), rules()
    both.states.put("s", StateAt(1, 3, 3, 0, b"[1,2,3]"))

    with pytest.raises(CorruptRecordError):
        append(memory, both, 4).finish()

    assert memory.head() == 1


def test_hooks_without_a_reducer_get_no_state() -> None:
    """And none is brought up for them, or remembered."""
    seen: list[Any] = []
    memory = filled(1)
    play = append(memory, Rules(validate=lambda *given: seen.append(given)), 2, 3)

    play.run(Commit)

    assert seen == [(2, None), (3, None)]
    assert (memory.states, memory.head()) == ({}, 3)


# Snapshots


@pytest.mark.parametrize("every, kept", [(1, 5), (2, 4), (3, 3), (6, None)])
def test_snapshot_is_kept_by_cadence(every: int, kept: int | None) -> None:
    """In the commit of the operation with which the last one is that long ago."""
    memory, both = Memory(), rules(every)
    for number in range(1, 6):
        append(memory, both, number).finish()
        both.states.put("s", memory.states["s"])

    row = memory.snapshots.get("s")
    assert (None if row is None else row.sequence) == kept
    assert row is None or row == SnapshotRow(1, row.sequence, row.sequence, 1, row.state, START + row.sequence)


@pytest.mark.parametrize(
    "present, is_replaced",
    [
        (SnapshotRow(1, 2, 2, 1, b"[1,2]", 0), False),
        (SnapshotRow(1, 1, 1, 1, b"[1]", 0), True),
        (SnapshotRow(1, 2, 2, 7, b"[1,2]", 0), True),
        (SnapshotRow(9, 2, 2, 1, b"[1,2]", 0), True),
        (None, True),
    ],
)
def test_snapshot_of_another_process_counts(present: SnapshotRow | None, is_replaced: bool) -> None:
    """Where it is of this epoch and version, and not long ago."""
    memory, both = filled(1, 2), rules(2)
    both.states.put("s", StateAt(1, 2, 2, 0, b"[1,2]"))
    if present is not None:
        memory.snapshots["s"] = present

    append(memory, both, 3).run(Commit)

    assert (memory.snapshots["s"].sequence == 3) is is_replaced
    assert memory.states["s"].kept == memory.snapshots["s"].sequence


def test_snapshot_that_was_of_no_use_is_replaced_at_once() -> None:
    """However new it is."""
    memory, both = filled(1, 2), rules()
    memory.snapshots["s"] = SnapshotRow(1, 2, 2, 1, b"unreadable", 0)

    append(memory, both, 3).finish()

    assert memory.snapshots["s"] == SnapshotRow(1, 3, 3, 1, b"[1,2,3]", memory.at)


def test_refused_append_keeps_no_snapshot() -> None:
    """It consumes nothing."""
    memory, both = filled(1), rules(1, authorize=lambda *_: False)
    with pytest.raises(Exception, match="may not append"):
        append(memory, both, 3).finish()

    assert memory.snapshots == {}


def test_state_for_a_compaction_is_that_of_the_last_operation() -> None:
    """As a row that its transaction can save."""
    memory, both = filled(1, 2, 3, page_records=2), rules(version=4)

    row = Play(states.snapshot_through("s", both), memory).finish()
    assert row == SnapshotRow(1, 3, 3, 4, b"[1,2,3]", 0)
    memory.commit(lambda txn: states.save_snapshot(txn, "s", row))

    assert memory.snapshots["s"] == msgspec.structs.replace(row, at=memory.at)


def test_nothing_is_kept_for_a_compaction_without_a_reducer_or_operations() -> None:
    """There is no state then."""
    assert Play(states.snapshot_through("s", Rules()), filled(1)).finish() is None
    assert Play(states.snapshot_through("s", rules()), Memory()).finish() is None


# Identity


def test_repeat_needs_no_state() -> None:
    """One commit, and nobody is asked."""
    memory = filled(1, 2)
    play = append(memory, rules(validate=lambda *_: pytest.fail("it is not new")), 2)

    play.run(Commit)

    (answer,) = play.returned
    assert isinstance(answer, Committed)
    assert answer.repeated


def test_draft_that_its_upcast_breaks_is_refused_before_the_commit() -> None:
    """Nobody could read it."""
    schema = Schema(None, {"old": lambda old: old})
    protocol = operations.append("s", [("1", {"type": "old"})], "", None, Rules(schema))

    with pytest.raises(InvalidOperationError, match="back to it"):
        Play(protocol, Memory())


def test_long_streams_are_asked_for_in_bounded_pages() -> None:
    """At most `PAGE_RECORDS` at once."""
    memory = filled(*range(PAGE_RECORDS + 1), page_records=10**6)
    play = Play(states.load("s", rules()), memory)

    play.run(Read, Decide, Read, Decide)

    assert play.returned.sequence == PAGE_RECORDS + 1


# A snapshot held against what it is made of


def finding(memory: Memory, both: Rules) -> Finding | None:
    return Play(states.snapshot_finding("s", both), memory).finish()


@pytest.mark.parametrize(
    "row",
    [
        None,
        SnapshotRow(1, 2, 2, 1, b"[1, 2]", 0),
        SnapshotRow(1, 2, 2, 9, b"of another version", 0),
        SnapshotRow(7, 2, 2, 1, b"of another epoch", 0),
    ],
)
def test_snapshot_that_is_the_fold_or_cannot_be_judged_is_no_finding(row: SnapshotRow | None) -> None:
    """Whatever its spelling."""
    memory, both = filled(1, 2, 3), rules()
    if row is not None:
        memory.snapshots["s"] = row

    assert finding(memory, both) is None


def test_snapshot_of_a_compacted_stream_cannot_be_judged() -> None:
    """What it is made of is gone."""
    memory, both = filled(1, 2, 3), rules()
    memory.append(CompactionRecord("s", 1, 2, START, 2))
    memory.snapshots["s"] = SnapshotRow(1, 3, 3, 1, b"[9]", 0)

    assert finding(memory, both) is None
    assert finding(Memory(), both) is None


@pytest.mark.parametrize(
    "row",
    [
        SnapshotRow(1, 2, 2, 1, b"[1,3]", 0),
        SnapshotRow(1, 2, 2, 1, b"no JSON", 0),
        SnapshotRow(1, 3, 2, 1, b"[1,2]", 0),
        SnapshotRow(1, 9, 9, 1, b"[1,2,3]", 0),
    ],
)
def test_snapshot_that_is_not_the_fold_is_found(row: SnapshotRow) -> None:
    """Another state, another place, or one that is not there."""
    memory, both = filled(1, 2, 3), rules()
    memory.snapshots["s"] = row

    assert finding(memory, both) == Finding(
        "snapshots", row.position, "it is not what the operations of its stream come to"
    )


class WithoutOperations(Memory):
    """A journal whose operations cannot be read."""

    def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
        raise CorruptRecordError(after + 1, "its checksum is wrong", stream=stream)


def test_snapshot_whose_operations_cannot_be_read_is_found() -> None:
    """With what is wrong with them."""
    memory = WithoutOperations()
    memory.put_operation("1", 1)
    memory.snapshots["s"] = SnapshotRow(1, 1, 1, 1, b"[1]", 0)
    found = finding(memory, rules())

    assert found is not None
    assert "cannot be folded anew" in found.problem


def test_stream_that_moves_on_meanwhile_is_no_finding() -> None:
    """A reset or a compaction between two looks makes a sound snapshot look wrong."""
    memory, both = filled(1, 2, 3), rules()
    memory.snapshots["s"] = SnapshotRow(1, 2, 2, 1, b"[9]", 0)
    play = Play(states.snapshot_finding("s", both), memory).does(Read).does(Decide)
    del memory.snapshots["s"]

    assert play.finish() is None
