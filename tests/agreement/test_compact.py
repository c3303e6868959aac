"""`compact`, `floor`, `reset`, `epoch`, and every other call on a stream that was shortened or begun anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    AlreadyCommitted,
    Committed,
    CompactedCursorError,
    Cursor,
    IdentityConflictError,
    Intent,
    InvalidCompactionError,
    InvalidCursorError,
    Journal,
    JournalReadonlyError,
    SequenceConflictError,
)

from .support import Stub, accept, at_once, leave_failed, leave_open, leave_uncertain, unused
from .test_logs import Logger


def fill(j: Journal, count: int = 5, stream: str = "s") -> list[Committed]:
    """Appends some operations and gives them."""
    found = []
    for number in range(1, count + 1):
        committed = j.append(stream, {"n": number}, op_id=f"op-{number}", actor="ann")
        assert isinstance(committed, Committed)
        found.append(committed)
    return found


def nothing(_: Committed) -> list[Intent]:
    """Gives no intents."""
    return []


def positions(j: Journal, stream: str | None = None, after: int = 0) -> list[int]:
    """Gives the positions of the operations that are read."""
    return [c.position for c in j.read(stream, after=after)]


def assert_is_sound(j: Journal) -> None:
    """Nothing is wrong with it."""
    assert list(j.verify()) == []


# Compaction


def test_compaction_drops_what_is_at_or_below_the_position(j: Journal) -> None:
    """From the floor on all is as it was; the answer is the floor."""
    fill(j)

    floor = j.compact("s", 3)

    assert (floor, j.floor("s"), j.floor()) == (3, 3, 3)
    assert {type(floor), type(j.floor("s")), type(j.floor())} == {Cursor}
    assert positions(j, "s", after=3) == positions(j, after=3) == [4, 5]
    assert [c.operation for c in j.read("s", after=4)] == [{"n": 5}]
    assert_is_sound(j)


def test_compaction_is_one_record(j: Journal) -> None:
    """And one that has nothing to do is none."""
    fill(j)

    assert j.compact("s", 3) == 3
    assert j.head() == 6
    assert [j.compact("s", through) for through in (1, 2, 3)] == [3, 3, 3]
    assert j.head() == 6
    assert j.compact("s", 5) == 5
    assert j.compact("s", int(j.head())) == 5
    assert j.head() == 7


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("stream", ["s", None])
def test_reading_below_the_floor_is_refused(j: Journal, stream: str | None, after: int) -> None:
    """At the call, before anything is given or started."""
    fill(j)
    j.compact("s", 3)

    with pytest.raises(CompactedCursorError) as read:
        j.read(stream, after=after)
    with pytest.raises(CompactedCursorError) as recovered:
        j.recover(after, intents=unused(), stream=stream)
    with pytest.raises(CompactedCursorError) as recovered_beside:
        j.recover(after, intents=unused(), stream=stream, concurrency=4)

    for caught in (read, recovered, recovered_beside):
        assert (caught.value.cursor, caught.value.floor, caught.value.stream) == (after, 3, stream)
        assert f"cursor {after} is below the floor 3" in str(caught.value)


def test_reading_outside_the_log_is_told_first(j: Journal) -> None:
    """A cursor of another journal is another mistake."""
    fill(j)
    j.compact("s", 3)

    for after in (-1, 7):
        with pytest.raises(InvalidCursorError):
            j.read("s", after=after)
        with pytest.raises(InvalidCursorError):
            j.recover(after, intents=unused())


def test_other_streams_can_be_read_as_before(j: Journal) -> None:
    """Each has a floor of its own; all streams together have the highest."""
    fill(j, 2, "a")
    fill(j, 2, "b")
    j.compact("b", 3)

    assert (j.floor("a"), j.floor("b"), j.floor("unknown"), j.floor()) == (0, 3, 0, 3)
    assert positions(j, "a") == [1, 2]
    assert j.recover(intents=nothing, stream="a") == 2
    with pytest.raises(CompactedCursorError):
        j.read()
    assert positions(j, after=3) == [4]
    assert j.recover(3, intents=nothing) == 4


def test_floor_may_lie_past_the_last_operation(j: Journal) -> None:
    """Whoever has read everything goes on from where it is."""
    fill(j, 2)
    accept(j, "k")
    settled = j.recover(intents=nothing)
    j.save_cursor("reader", settled)

    assert j.compact("s", j.head()) == 4
    assert j.floor("s") == 4
    assert j.recover(j.cursor("reader"), intents=nothing) == 2
    assert positions(j, "s", after=2) == []
    with pytest.raises(CompactedCursorError):
        j.read("s", after=1)


def test_reader_in_flight_is_told_at_its_next_page(j: Journal, start_peer: Callable[..., Any]) -> None:
    """It has what it was given; what follows is no silent gap."""
    fill(j, 300)
    reader = iter(j.read("s"))
    walked: list[int] = []

    def intents(c: Committed) -> list[Intent]:
        if not walked:
            start_peer("compact", stream="s", through=299).hear("compacted")
        walked.append(c.position)
        return []

    first = next(reader)
    with pytest.raises(CompactedCursorError) as caught:
        j.recover(intents=intents)
    with pytest.raises(CompactedCursorError):
        list(reader)

    assert (caught.value.cursor, caught.value.floor) == (256, 299)
    assert first.position == 1
    assert walked == list(range(1, 257))
    assert_is_sound(j)


def test_everything_goes_on_after_all_was_compacted(j: Journal) -> None:
    """Sequence, `expected`, positions and epoch."""
    fill(j)
    j.compact("s", 5)

    with pytest.raises(SequenceConflictError) as caught:
        j.append("s", "x", op_id="x", expected=0)
    committed = j.append("s", "x", op_id="x", expected=5)

    assert (caught.value.sequence, caught.value.expected) == (5, 0)
    assert (committed.sequence, committed.position, j.epoch("s")) == (6, 7, 1)
    assert positions(j, "s", after=5) == [7]
    assert j.streams() == ["s"]
    assert j.stats().operations == 6
    assert_is_sound(j)


def test_identity_outlives_the_content(j: Journal, open_journal: Callable[..., Journal]) -> None:
    """A resend is answered without content, before any policy; another payload or actor is a conflict."""
    fill(j)
    j.compact("s", 3)

    for _ in range(2):
        assert j.append("s", {"n": 2}, op_id="op-2", actor="ann", expected=99) == AlreadyCommitted(
            "s", 2, 2, "op-2", "ann"
        )
        for operation, actor in (({"n": 3}, "ann"), ({"n": 2}, "bob")):
            with pytest.raises(IdentityConflictError) as caught:
                j.append("s", operation, op_id="op-2", actor=actor, expected=99)
            assert (caught.value.op_id, caught.value.position) == ("op-2", 2)
        j.close()
        j = open_journal()
    answers = j.append_all("s", [("op-1", {"n": 1}), ("op-4", {"n": 4}), ("op-9", 9)], actor="ann")

    assert answers[0] == AlreadyCommitted("s", 1, 1, "op-1", "ann")
    assert isinstance(answers[1], Committed)
    assert (answers[1].operation, answers[1].repeated) == ({"n": 4}, True)
    assert (answers[2].sequence, answers[2].position) == (6, 7)


@pytest.mark.parametrize("through", [0, -1, 6])
def test_position_outside_the_log_is_refused(j: Journal, through: int) -> None:
    """With both ends of what may be said."""
    fill(j)

    with pytest.raises(
        InvalidCompactionError, match=f"through {through} is outside the log, which ends at 5"
    ) as caught:
        j.compact("s", through)

    assert (caught.value.stream, j.head(), j.floor()) == ("s", 5, 0)


def test_unknown_stream_is_refused(j: Journal) -> None:
    """A misspelt one is not taken for compacted."""
    fill(j)

    with pytest.raises(InvalidCompactionError, match="'none'"):
        j.compact("none", 3)
    with pytest.raises(ValueError):
        j.compact("", 3)


@pytest.mark.parametrize(
    "through,options", [(True, {}), ("3", {}), (3.0, {}), (3, {"past_cursors": "reader"}), (3, {"past_effects": "key"})]
)
def test_wrong_arguments_are_type_errors(j: Journal, through: Any, options: dict[str, Any]) -> None:
    """Nothing was written."""
    fill(j)

    with pytest.raises(TypeError):
        j.compact("s", through, **options)

    assert j.head() == 5


def test_readonly_handle_compacts_nothing(j: Journal, open_journal: Callable[..., Journal]) -> None:
    """But it knows the floor, and the epoch."""
    fill(j)
    j.compact("s", 3)
    j.reset("s")
    j.append("s", 1, op_id="op-1")
    j.compact("s", 8)
    j.close()
    j = open_journal(readonly=True)

    calls: list[Callable[[], Any]] = [
        lambda: j.compact("s", 1),
        lambda: j.compact("s", 8),
        lambda: j.reset("s"),
        lambda: j.reset("none"),
    ]
    for call in calls:
        with pytest.raises(JournalReadonlyError):
            call()
    assert (j.floor("s"), j.floor(), j.epoch("s"), j.head()) == (8, 8, 2, 9)
    with pytest.raises(CompactedCursorError):
        j.read("s")


def test_what_was_appended_last_can_be_compacted_at_once(j: Journal) -> None:
    """`Committed.position`, a cursor and a `Settled` are positions."""
    last = fill(j)[-1]

    assert j.compact("s", last.position) == 5
    fresh = j.append("s", 1, op_id="new")
    assert j.compact("s", j.recover(5, intents=nothing)) == fresh.position


def test_large_operations_are_compacted(j: Journal) -> None:
    """More than one transaction drops."""
    for number in range(7):
        j.append("s", "x" * 1_000_000 + str(number), op_id=str(number))

    j.compact("s", 6)

    assert [c.operation[-1] for c in j.read("s", after=6)] == ["6"]
    assert_is_sound(j)


def test_many_operations_are_compacted_and_their_pages_used_again(j: Journal) -> None:
    """No more of the file is used than before, while half as much again is appended."""
    big = "x" * 3_000
    j.append_all("s", [(str(n), f"{big}{n}") for n in range(2_000)])
    j.compact("s", 2_000)
    before = j.stats().used_bytes

    j.append_all("s", [(str(n), f"{big}{n}") for n in range(2_000, 3_000)])

    assert j.stats().used_bytes < before * 1.2
    assert_is_sound(j)


# What is refused


@pytest.mark.parametrize("stream", ["s", None])
def test_saved_cursor_is_not_passed(j: Journal, stream: str | None) -> None:
    """Of that stream or of all, unless it is named."""
    fill(j)
    j.save_cursor("reader", 2, stream=stream)
    j.save_cursor("another's", 0, stream="t")

    assert j.compact("s", 2) == 2
    with pytest.raises(InvalidCompactionError, match="'reader' is at 2") as caught:
        j.compact("s", 4)
    assert (j.floor("s"), j.head(), caught.value.stream) == (2, 6, "s")
    with pytest.raises(InvalidCompactionError):
        j.compact("s", 4, past_cursors=["other"])

    assert j.compact("s", 4, past_cursors=["reader"]) == 4
    assert j.cursor("reader") == 2
    with pytest.raises(CompactedCursorError):
        j.recover(j.cursor("reader"), intents=nothing, stream=stream)


def test_saved_cursor_that_went_on_is_no_reason(j: Journal) -> None:
    """Only where it is now counts."""
    fill(j)
    j.save_cursor("reader", 2)
    j.save_cursor("reader", 4)

    assert j.compact("s", 4) == 4


@pytest.mark.parametrize("leave", [leave_open, leave_failed])
def test_operation_with_an_unfinished_effect_is_not_passed(j: Journal, leave: Any) -> None:
    """It is named; settled or told, it is passed."""
    committed = fill(j)[1]
    key = committed.effect_key("mail", 1)
    leave(j, key)
    head = j.head()

    assert j.compact("s", 1) == 1
    with pytest.raises(InvalidCompactionError) as caught:
        j.compact("s", 3)

    assert repr(key) in str(caught.value)
    assert (j.floor("s"), j.head()) == (1, head + 1)
    with pytest.raises(InvalidCompactionError):
        j.compact("s", 3, past_effects=[committed.effect_key("mail", 2)])
    assert j.compact("s", 3, past_effects=[key]) == 3
    assert [record.key for record in j.unfinished()] == [key]
    assert j.compact("s", 5) == 5
    assert_is_sound(j)


def test_settled_effects_are_no_reason(j: Journal) -> None:
    """Nor are those of later operations."""
    one, two, three = fill(j, 3)
    accept(j, one.effect_key("mail"))
    leave_uncertain(j, two.effect_key("mail"))
    leave_open(j, three.effect_key("mail"))

    assert j.compact("s", 2) == 2
    record = j.record(one.effect_key("mail"))
    assert record is not None
    assert record.phase == "accepted"
    assert [event.phase for event in j.history(two.effect_key("mail"))][-1] == "uncertain"


# Reset


def test_reset_begins_a_new_epoch(j: Journal) -> None:
    """One record; sequences start at 1, positions go on, and what was is no longer read."""
    first = fill(j)
    fill(j, 1, "t")

    assert j.reset("s") == 2

    assert (j.epoch("s"), j.epoch("t"), j.epoch("unknown"), j.head()) == (2, 1, 1, 7)
    assert (positions(j, "s"), positions(j)) == ([], [6])
    assert j.streams() == ["s", "t"]
    with pytest.raises(SequenceConflictError):
        j.append("s", 1, op_id="op-1", expected=5)
    again = j.append("s", {"n": "other"}, op_id="op-1", expected=0)
    assert isinstance(again, Committed)
    assert (again.sequence, again.position, again.epoch, again.repeated) == (1, 8, 2, False)
    assert positions(j, "s") == positions(j, "s", after=3) == [8]
    assert positions(j) == [6, 8]
    repeated = j.append("s", {"n": "other"}, op_id="op-1")
    assert isinstance(repeated, Committed)
    assert repeated.repeated
    assert again.effect_key("mail") != first[0].effect_key("mail")
    assert_is_sound(j)


def test_reset_stream_is_walked_from_any_cursor(j: Journal) -> None:
    """Also from one saved before; its effects are new work."""
    first = fill(j, 2)
    run = Stub("proof")

    def intents(c: Committed) -> list[Intent]:
        return [Intent(c.effect_key("mail"), run)]

    assert j.recover(intents=intents) == 2
    j.save_cursor("reader", 1, stream="s")
    j.reset("s")
    position = j.append("s", {"n": 1}, op_id="op-1").position

    assert j.recover(j.cursor("reader"), intents=intents, stream="s") == position
    assert j.recover(intents=intents) == position
    assert run.count == 3
    assert [event.phase for event in j.history(first[0].effect_key("mail"))] == ["intent", "accepted"]


def test_reset_takes_the_floor_away(j: Journal) -> None:
    """The stream reads from any cursor."""
    fill(j)
    j.compact("s", 3)

    j.reset("s")

    assert (j.floor("s"), j.floor()) == (0, 0)
    assert positions(j, "s") == positions(j) == []
    assert j.recover(intents=nothing) == 0
    j.append("s", 1, op_id="op-1")
    assert positions(j) == [8]
    assert_is_sound(j)


def test_unknown_stream_is_not_reset(j: Journal) -> None:
    """Nothing is written: its first epoch is yet to come."""
    assert j.reset("s") == 1
    assert (j.head(), j.epoch("s"), j.streams()) == (0, 1, [])
    with pytest.raises(TypeError):
        j.reset(1)  # type: ignore[arg-type]  # it is what is refused


def test_each_reset_counts(j: Journal, open_journal: Callable[..., Journal]) -> None:
    """Of a stream that is empty, too, and across restarts."""
    fill(j, 1)
    assert [j.reset("s"), j.reset("s")] == [2, 3]
    j.close()

    j = open_journal()

    assert j.reset("s") == 4
    committed = j.append("s", 1, op_id="op-1")
    assert isinstance(committed, Committed)
    assert (committed.epoch, committed.sequence, committed.position) == (4, 1, 5)
    assert_is_sound(j)


def test_ended_epochs_go_with_a_later_compaction(j: Journal) -> None:
    """Whatever cursors and effects there were: nobody can read them any more."""
    committed = fill(j)
    j.save_cursor("reader", 0)
    leave_open(j, committed[0].effect_key("mail"))
    j.reset("s")
    size = j.head()

    assert j.compact("s", size) == size
    assert positions(j, "s") == positions(j) == []
    assert j.compact("s", size) == size
    assert j.head() == size + 1
    j.append("s", "new", op_id="op-1")
    assert positions(j, "s") == positions(j) == [size + 2]
    assert_is_sound(j)


def test_reader_in_flight_goes_on_with_what_is_there(j: Journal) -> None:
    """Of a stream that is reset while it is read, its next page is of the new epoch."""
    fill(j, 300)
    reader = iter(j.read("s"))
    first = next(reader)
    j.reset("s")
    last = j.append("s", "new", op_id="op-1")

    rest = list(reader)

    assert first.position == 1
    assert [c.position for c in rest if c.epoch == 2] == [last.position]
    assert len(rest) <= 256


def test_wait_wakes_for_compaction_and_reset(j: Journal) -> None:
    """Both are log records."""
    fill(j)

    j.compact("s", 3)
    assert j.wait(5, timeout=0) == 6
    j.reset("s")
    assert j.wait(6, timeout=0) == 7


# Others, and logs


def test_each_is_logged_once(open_journal: Callable[..., Journal]) -> None:
    """After the commit, with its position."""
    logger = Logger()
    j = open_journal(logger=logger)
    fill(j)

    j.compact("s", 3)
    j.compact("s", 3)
    j.reset("s")

    (compacted,) = logger.named("stream_compacted")
    (reset,) = logger.named("stream_reset")
    assert (compacted.level, reset.level) == ("info", "info")
    assert compacted.values == {"journal_id": j.journal_id, "position": 6, "stream": "s", "floor": 3}
    assert reset.values == {"journal_id": j.journal_id, "position": 7, "stream": "s", "epoch": 2}


def test_many_may_compact_at_once(j: Journal) -> None:
    """Threads or tasks, one stream or several: every one ends with its floor or a higher one."""
    fill(j, 200, "a")
    fill(j, 200, "b")
    throughs = iter([("a", 50), ("a", 150), ("b", 250), ("a", 100), ("b", 400), ("b", 300)])

    calls = at_once(6, lambda: (given := next(throughs), j.compact(*given)))

    assert all(floor >= through for (_, through), floor in (call.result() for call in calls))
    assert (j.floor("a"), j.floor("b")) == (150, 400)
    assert positions(j, "a", after=150) == list(range(151, 201))
    assert_is_sound(j)


def test_appends_go_on_during_a_compaction(j: Journal) -> None:
    """Each of its transactions is short."""
    fill(j, 1_500)
    compacting = at_once(1, lambda: j.compact("s", 1_400))
    appended = [j.append("s", n, op_id=f"new-{n}").sequence for n in range(50)]

    assert compacting[0].result() == 1_400
    assert appended == list(range(1_501, 1_551))
    assert len(positions(j, "s", after=1_400)) == 150
    assert_is_sound(j)


def test_another_process_sees_it(j: Journal, path: Path, start_peer: Callable[..., Any]) -> None:
    """At its next call."""
    fill(j)
    peer = start_peer("compact", stream="s", through=3)
    assert peer.hear("compacted")["floor"] == 3
    peer.finish()

    assert j.floor("s") == 3
    with pytest.raises(CompactedCursorError):
        j.read("s")
    assert isinstance(j.append("s", {"n": 1}, op_id="op-1", actor="ann"), AlreadyCommitted)
    assert_is_sound(j)


def test_closed_journal_refuses(j: Journal) -> None:
    """As every method."""
    j.close()

    calls: list[Callable[[], Any]] = [
        lambda: j.compact("s", 1),
        j.floor,
        lambda: j.reset("s"),
        lambda: j.epoch("s"),
    ]
    for call in calls:
        with pytest.raises(journal.JournalClosedError):
            call()
