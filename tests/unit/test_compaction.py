"""`journal/_core/compaction.py`: what is dropped, what is refused, and where a killed compaction goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest

from journal._core import compaction
from journal._core.requests import Commit, OperationPage, Read, Steps
from journal.errors import CompactedCursorError, CorruptRecordError, InvalidCompactionError, JournalFullError, Key
from journal.options import PROOF_BYTES_MAX
from journal.records import (
    CompactionRecord,
    CursorRow,
    DroppingRow,
    FloorRow,
    OperationRecord,
    Phase,
    ResetRecord,
    SnapshotRow,
    StreamRow,
)
from journal.values import Cursor
from tests.unit.support import START, Memory, Play

STATE: Final = b'{"count":3}'


def filled(count: int = 3, *, stream: str = "s") -> Memory:
    """A journal with some operations, at positions from 1 on."""
    memory = Memory()
    for number in range(1, count + 1):
        memory.put_operation(f"op-{number}", {"n": number}, stream=stream)
    return memory


def compact(
    memory: Memory,
    through: Any,
    *,
    stream: Any = "s",
    past_cursors: Any = (),
    past_effects: Any = (),
    snapshot: compaction.Snapshot | None = None,
) -> Cursor:
    """What a compaction answers, all its requests answered."""
    return Play(compaction.compact(stream, through, past_cursors, past_effects, snapshot), memory).finish()


def refusal(memory: Memory, through: int, **options: Any) -> str:
    """Why a compaction is refused, which then has written nothing."""
    before = list(memory.log)
    with pytest.raises(InvalidCompactionError) as caught:
        compact(memory, through, **options)
    assert memory.log == before
    assert memory.left_to_drop == {}
    assert caught.value.stream == options.get("stream", "s")
    return caught.value.reason


def payloads(memory: Memory) -> list[bool]:
    """Whether each operation has its payload, in log order."""
    return [bool(payload) for record, payload in memory.log if isinstance(record, OperationRecord)]


def floor(memory: Memory, stream: Any = None) -> Cursor:
    """What `floor` answers."""
    return Play(compaction.floor(stream), memory).finish()


# What is dropped


def test_compaction_is_one_record_and_then_the_payloads() -> None:
    """It looks for what others left, commits the record with the row that says what is to go, and lets it go."""
    memory = filled()

    play = Play(compaction.compact("s", 2, (), ()), memory).run(Read, Commit)

    assert memory.log[-1] == (CompactionRecord("s", 1, 2, START + 1, 2), b"")
    assert memory.dropping("s") == DroppingRow(0, 2)
    assert payloads(memory) == [True, True, True]
    assert play.run(Commit, Read).returned == Cursor(2)
    assert type(play.returned) is Cursor
    assert payloads(memory) == [False, False, True]
    assert memory.droppings() == []


def test_payloads_go_in_bounded_transactions() -> None:
    """Each says how far it came."""
    memory = filled(5)
    memory.drop_records = 2

    play = Play(compaction.compact("s", 5, (), ()), memory).run(Read, Commit, Commit)

    assert memory.dropping("s") == DroppingRow(2, 5)
    assert payloads(memory) == [False, False, True, True, True]
    assert play.run(Commit, Commit, Read).is_done
    assert payloads(memory) == [False] * 5


def test_full_journal_is_made_room_in() -> None:
    """What a compaction writes may use what is kept for outcomes, and fewer payloads go at once, down to one."""
    memory = filled(3)
    play = Play(compaction.compact("s", 3, (), ()), memory).run(Read)
    assert play.expect(Commit).settles
    play.does(Commit)
    full = JournalFullError("path", "it is")

    for _ in range(4):
        assert play.expect(Commit).settles
        play.raises(Commit, full)
    play.does(Commit)
    assert payloads(memory) == [False, True, True]
    with pytest.raises(JournalFullError):
        play.raises(Commit, full)

    assert floor(memory, "s") == 3
    assert memory.dropping("s") == DroppingRow(1, 3)
    assert compact(memory, 3) == 3
    assert payloads(memory) == [False, False, False]


@pytest.mark.parametrize("size, settles", [(PROOF_BYTES_MAX, True), (PROOF_BYTES_MAX + 1, False)])
def test_large_state_uses_no_reserve(size: int, settles: bool) -> None:
    """It may be more than goes."""

    def large(stream: str) -> Steps[SnapshotRow | None]:
        yield Read(lambda view: view.head())
        return SnapshotRow(1, 3, 3, 1, b"x" * size, 0)

    play = Play(compaction.compact("s", 3, (), (), large), filled()).run(Read, Read, Read)

    assert play.expect(Commit).settles is settles


def test_floor_is_what_was_asked_for() -> None:
    """Also past the last operation; of all streams it is the highest."""
    memory = filled()
    memory.put_effect("k", Phase.INTENT)
    memory.put_operation("op-1", stream="t")

    assert compact(memory, 4) == 4
    assert (floor(memory, "s"), floor(memory, "t"), floor(memory)) == (4, 0, 4)
    assert compact(memory, 5, stream="t") == 5
    assert (floor(memory, "s"), floor(memory, "t"), floor(memory)) == (4, 5, 5)
    assert memory.floor("s") == FloorRow(3, 6, 4)
    assert type(floor(memory)) is Cursor


def test_floor_of_what_is_not_compacted_is_0() -> None:
    """Of an unknown stream, and of all."""
    assert (floor(Memory(), "none"), floor(Memory()), floor(filled(), "s")) == (0, 0, 0)


@pytest.mark.parametrize("through", [1, 2, 3])
def test_floor_never_falls(through: int) -> None:
    """At or below it, or where no operation lies between, nothing is written."""
    memory = filled()
    memory.put_operation("op-4", stream="s")
    compact(memory, 3)
    before = list(memory.log)

    assert compact(memory, through) == 3
    assert memory.log == before


def test_nothing_between_the_floor_and_the_position_writes_nothing() -> None:
    """Another's records are no reason for a record."""
    memory = filled()
    compact(memory, 3)
    memory.put_operation("op-1", stream="t")
    before = list(memory.log)

    assert compact(memory, memory.head()) == 3
    assert memory.log == before


def test_operations_of_other_streams_keep_their_payloads() -> None:
    """However far the compaction goes."""
    memory = filled(2)
    memory.put_operation("op-1", stream="t")

    assert compact(memory, 3) == 3
    assert payloads(memory) == [False, False, True]


def test_second_compaction_drops_what_is_new() -> None:
    """From the floor on."""
    memory = filled(4)
    compact(memory, 2)
    Play(compaction.compact("s", 4, (), ()), memory).run(Read, Commit)

    assert memory.dropping("s") == DroppingRow(2, 4)
    assert floor(memory, "s") == 4


# What is refused


@pytest.mark.parametrize("through", [-1, 0, 4])
def test_position_outside_the_log_is_refused(through: int) -> None:
    """With what is in it."""
    reason = refusal(filled(), through)

    assert f"through {through} is outside the log, which ends at 3" in reason


def test_unknown_stream_is_refused() -> None:
    """It would look as if something was compacted."""
    assert "nothing was ever appended" in refusal(filled(), 1, stream="none")


@pytest.mark.parametrize(
    "options",
    [
        {"through": "1"},
        {"through": True},
        {"through": None},
        {"through": 1, "stream": 1},
        {"through": 1, "past_cursors": "reader"},
        {"through": 1, "past_cursors": [1]},
        {"through": 1, "past_cursors": 1},
        {"through": 1, "past_effects": "key"},
        {"through": 1, "past_effects": b"key"},
        {"through": 1, "past_effects": [1.5]},
    ],
)
def test_argument_of_another_type_is_a_type_error(options: Any) -> None:
    """Before anything is looked at: a string is no collection of names."""
    memory = filled()

    with pytest.raises(TypeError):
        compact(memory, **options)

    assert memory.commits == 0


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("cursor", [0, 1])
def test_saved_cursor_with_operations_to_read_is_not_passed(stream: str | None, cursor: int) -> None:
    """One of that stream, or of all; it is named, with the position."""
    memory = filled()
    memory.cursors["reader"] = CursorRow(cursor, stream, START)

    reason = refusal(memory, 2)

    assert f"'reader' is at {cursor}" in reason
    assert "through 2" in reason
    assert "past_cursors=['reader']" in reason
    assert compact(memory, 2, past_cursors=["reader", "unknown"]) == 2


def test_saved_cursor_that_has_read_everything_is_passed() -> None:
    """Records that are no operations of the stream are nothing to read."""
    memory = filled(2)
    memory.put_effect("k", Phase.INTENT)
    memory.put_operation("op-1", stream="t")
    memory.cursors["all"] = CursorRow(2, None, START)
    memory.cursors["own"] = CursorRow(3, "s", START)
    memory.cursors["another's"] = CursorRow(0, "t", START)

    assert compact(memory, memory.head()) == 4
    with pytest.raises(CompactedCursorError):
        memory.operations(None, 1, 10)
    assert [stored.position for stored in memory.operations(None, 2, 10).operations] == [4]


@pytest.mark.parametrize("phase", [Phase.INTENT, Phase.RELEASED, Phase.FAILED])
def test_operation_with_an_unfinished_effect_is_not_passed(phase: Phase) -> None:
    """The effect is named; told by its key, it is passed."""
    memory = filled()
    key: Key = ("s", 1, "op-2", "mail", 7)
    memory.put_effect(key, Phase.INTENT)
    if phase is not Phase.INTENT:
        memory.put_effect(key, phase)

    reason = refusal(memory, 3)

    assert f"effect {key!r} of the operation at 2 is unfinished" in reason
    assert f"past_effects=[{key!r}]" in reason
    assert compact(memory, 1) == 1
    assert compact(memory, 3, past_effects=[key]) == 3


@pytest.mark.parametrize(
    "key",
    [
        "s",
        ("s", 1),
        ("s", 1, 2, "mail"),
        ("s", 1, "op-3", "mail"),
        ("s", 1, "none", "mail"),
        ("s", 2, "op-1", "mail"),
        ("t", 1, "op-1", "mail"),
        ("s", "1", "op-1", "mail"),
    ],
)
def test_unfinished_effect_of_nothing_that_goes_is_no_reason(key: Key) -> None:
    """One of a later operation, another epoch or stream, or with a key of another form."""
    memory = filled()
    memory.put_effect(key, Phase.INTENT)

    assert compact(memory, 2) == 2


def test_unfinished_effect_of_a_compacted_operation_is_no_reason() -> None:
    """It was passed once already."""
    memory = filled()
    memory.put_effect(("s", 1, "op-1"), Phase.INTENT)
    compact(memory, 1, past_effects=[("s", 1, "op-1")])

    assert compact(memory, 3) == 3


def test_every_page_of_unfinished_effects_is_looked_at() -> None:
    """The last one too."""
    memory = filled()
    memory.page_effects = 1
    for number in range(3):
        memory.put_effect(("s", 1, "none", number), Phase.INTENT)
    memory.put_effect(("s", 1, "op-1", "mail"), Phase.INTENT)

    assert "'op-1', 'mail'" in refusal(memory, 3)


def test_settled_effects_are_no_reason() -> None:
    """Accepted, uncertain and cleared ones."""
    memory = filled()
    for number, phase in enumerate((Phase.ACCEPTED, Phase.UNCERTAIN, Phase.CLEARED)):
        memory.put_effect(("s", 1, "op-1", number), Phase.INTENT)
        memory.put_effect(("s", 1, "op-1", number), phase)

    assert compact(memory, 3) == 3


# The state


class Keeper:
    """Stands in for the protocol that gives a stream's state; the stream may go on meanwhile."""

    def __init__(self, memory: Memory, *meanwhile: Any) -> None:
        self.memory = memory
        self.meanwhile = list(meanwhile)
        self.count = 0

    def __call__(self, stream: str) -> Steps[SnapshotRow | None]:
        row: StreamRow | None = yield Read(lambda view: view.stream(stream))
        position: int = yield Read(lambda view: view.last_operation(stream, view.head()))
        self.count += 1
        if self.meanwhile:
            self.meanwhile.pop(0)()
        assert row is not None
        if position <= row.epoch_position:
            return None
        return SnapshotRow(row.epoch, position, position, 1, STATE, 0)


def test_state_is_kept_with_the_record() -> None:
    """In the same transaction, at its time."""
    memory = filled()
    keeper = Keeper(memory)

    Play(compaction.compact("s", 2, (), (), keeper), memory).run(Read, Read, Read, Read, Commit)

    assert memory.snapshot("s") == SnapshotRow(1, 3, 3, 1, STATE, START + 1)
    assert memory.floor("s") == FloorRow(2, 4, 2)


def test_state_has_all_that_goes() -> None:
    """What is appended while it is read stands past all positions that may go."""
    memory = filled()
    keeper = Keeper(memory, lambda: memory.put_operation("op-4"))

    assert compact(memory, 3, snapshot=keeper) == 3
    assert keeper.count == 1
    assert memory.snapshot("s") == SnapshotRow(1, 3, 3, 1, STATE, START + 1)


def test_state_of_an_epoch_that_ended_meanwhile_is_not_kept() -> None:
    """What goes is then of a past epoch."""
    memory = filled()

    def begin_anew() -> None:
        memory.append(ResetRecord("s", 2, START))
        memory.put_operation("op-1")

    assert compact(memory, 3, snapshot=Keeper(memory, begin_anew)) == 3
    assert memory.snapshot("s") is None
    assert memory.floor("s") == FloorRow(0, 6, 3)


def test_state_that_cannot_be_built_refuses_the_compaction() -> None:
    """Nothing was written."""
    memory = filled()

    def broken(stream: str) -> Steps[SnapshotRow | None]:
        yield Read(lambda view: view.head())
        raise CorruptRecordError(None, "no snapshot", stream=stream)

    with pytest.raises(CorruptRecordError):
        compact(memory, 2, snapshot=broken)

    assert memory.head() == 3
    assert payloads(memory) == [True, True, True]


def test_no_state_is_built_where_nothing_goes() -> None:
    """Or where only operations of past epochs do."""
    memory = filled()
    keeper = Keeper(memory)
    compact(memory, 3, snapshot=keeper)
    compact(memory, 3, snapshot=keeper)
    Play(compaction.reset("s"), memory).finish()

    assert compact(memory, 3, snapshot=keeper) == 3
    assert keeper.count == 1


def test_refused_compaction_builds_no_state() -> None:
    """It may be long."""
    memory = filled()
    memory.cursors["reader"] = CursorRow(0, None, START)
    keeper = Keeper(memory)

    refusal(memory, 2, snapshot=keeper)

    assert keeper.count == 0


# What was cut off


@pytest.mark.parametrize("stream", ["s", "t"])
def test_next_compaction_ends_what_was_cut_off(stream: str) -> None:
    """Of whatever stream, also where it has nothing to do itself."""
    memory = filled(4)
    memory.put_operation("op-1", stream="t")
    memory.drop_records = 1
    Play(compaction.compact("s", 4, (), ()), memory).run(Read, Commit, Commit).close()
    assert payloads(memory) == [False, True, True, True, True]

    compact(memory, 5 if stream == "t" else 1, stream=stream)

    assert payloads(memory) == [False, False, False, False, stream != "t"]
    assert memory.droppings() == []


def test_further_compaction_takes_over_what_is_left() -> None:
    """Where another process has begun meanwhile."""
    memory = filled(4)
    memory.drop_records = 1
    late = Play(compaction.compact("s", 4, (), ()), memory).run(Read)
    early = Play(compaction.compact("s", 3, (), ()), memory).run(Read, Commit, Commit)

    late.run(Commit)

    assert memory.dropping("s") == DroppingRow(1, 4)
    assert late.finish() == 4
    assert early.finish() == 4
    assert payloads(memory) == [False] * 4


def test_damaged_stream_holds_up_no_other() -> None:
    """Its own compaction says so, a compaction of another goes past it; and nothing past a floor is ever dropped."""
    memory = filled()
    memory.put_operation("op-1", stream="t")
    memory.left_to_drop["s"] = DroppingRow(0, 3)

    assert compact(memory, 4, stream="t") == 4
    with pytest.raises(CorruptRecordError) as caught:
        compact(memory, 2)

    assert caught.value.stream == "s"
    assert payloads(memory) == [True, True, True, False]


def test_what_is_left_of_an_unknown_stream_is_damage() -> None:
    """No compaction wrote it."""
    memory = filled()
    memory.left_to_drop["none"] = DroppingRow(0, 3)

    assert compact(memory, 3) == 3
    assert memory.droppings() == ["none"]


# Reset


def test_reset_begins_a_new_epoch() -> None:
    """Its number comes back, and the sequence starts at 1."""
    memory = filled()
    compact(memory, 2)

    assert Play(compaction.reset("s"), memory).run(Commit).returned == 2
    assert memory.log[-1] == (ResetRecord("s", 2, memory.at), b"")
    assert Play(compaction.epoch("s"), memory).run(Read).returned == 2
    assert floor(memory, "s") == 0
    assert memory.sequence("s") == 0
    assert memory.streams() == ["s"]
    assert Play(compaction.reset("s"), memory).finish() == 3


def test_unknown_stream_is_in_its_first_epoch() -> None:
    """A reset of it writes nothing."""
    memory = Memory()

    assert Play(compaction.epoch("s"), memory).finish() == 1
    assert Play(compaction.reset("s"), memory).finish() == 1
    assert memory.head() == 0
    assert Play(compaction.reset("s"), filled()).finish() == 2


@pytest.mark.parametrize("protocol", [compaction.reset, compaction.epoch, compaction.floor])
def test_stream_is_checked(protocol: Any) -> None:
    """Before anything is looked at."""
    with pytest.raises(TypeError):
        next(protocol(1))
    with pytest.raises(ValueError):
        next(protocol(""))


def test_past_epochs_go_with_a_later_compaction() -> None:
    """Also where the stream has nothing since, whatever cursors and effects were: nobody can read it any more."""
    memory = filled()
    memory.cursors["reader"] = CursorRow(0, None, START)
    memory.put_effect(("s", 1, "op-1", "mail"), Phase.INTENT)
    Play(compaction.reset("s"), memory).finish()

    assert compact(memory, 2) == 2
    assert payloads(memory) == [False, False, True]
    assert memory.floor("s") == FloorRow(0, 6, 2)
    assert memory.operations("s", 0, 10) == OperationPage([], 6, True)
    assert compact(memory, memory.head()) == 6
    assert payloads(memory) == [False, False, False]
    position = memory.put_operation("op-1")
    assert [stored.position for stored in memory.operations("s", 0, 10).operations] == [position]
