"""`journal/_core/pruning.py`: what is pruned and what stays, request by request, and what takes its place in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from journal._core import pruning
from journal._core.effects import effect, run_effect, settle
from journal._core.keys import key_form
from journal._core.ledger import Tombstone
from journal._core.payloads import digest
from journal._core.pruning import Run, covering, prune_effects, revive
from journal._core.queries import EffectPages, history, record
from journal._core.requests import Call, Commit, Decide, Enter, Read, RunRaisedError
from journal._core.resolution import clear_effect, resolve
from journal.errors import (
    CorruptRecordError,
    EffectConflictError,
    EffectPrunedError,
    EffectUnresolvedError,
    JournalFullError,
    JournalReadonlyError,
)
from journal.options import PRUNE_EFFECTS_MAX
from journal.records import Guarantee, Phase, PrunedRecord, Via
from journal.values import Accepted, EffectRecord, Uncertain
from tests.unit.support import OWN, START, Boom, Memory, Play, at_most_once, idempotent, unused

INTENT, ACCEPTED, UNCERTAIN, FAILED, RELEASED, CLEARED = (
    Phase.INTENT,
    Phase.ACCEPTED,
    Phase.UNCERTAIN,
    Phase.FAILED,
    Phase.RELEASED,
    Phase.CLEARED,
)
LATER: Final = START + 1_000_000
FULL: Final = JournalFullError("/journal", "no room")


def with_(*keys: str, phases: tuple[Phase, ...] = (INTENT, ACCEPTED)) -> Memory:
    """A journal in which these keys have had these events."""
    memory = Memory()
    for key in keys:
        for phase in phases:
            memory.put_effect(key, phase)
    return memory


def pruning_all(memory: Memory, *, before: Any = LATER, keep: Any = None) -> Play[int]:
    """A pruning that has begun."""
    return Play(prune_effects(before, keep), memory)


def keys_of(memory: Memory) -> list[Any]:
    """The keys on record."""
    return [record.key for record in Play(EffectPages(None, None, None, None).next(), memory).finish()]


# What goes


@pytest.mark.parametrize(
    "phases",
    [
        (INTENT,),
        (INTENT, RELEASED),
        (INTENT, FAILED),
        (INTENT, UNCERTAIN),
        (FAILED,),
        (INTENT, ACCEPTED, CLEARED, INTENT),
        (INTENT, ACCEPTED, CLEARED, INTENT, UNCERTAIN),
    ],
)
def test_what_is_not_accepted_is_never_pruned(phases: tuple[Phase, ...]) -> None:
    """However old it is: it waits for somebody, or stands for what nobody knows."""
    memory = with_("k", phases=phases)

    assert pruning_all(memory).finish() == 0
    assert memory.phases("k") == [phase.word for phase in phases]


@pytest.mark.parametrize("phases", [(INTENT, ACCEPTED), (INTENT, FAILED, INTENT, ACCEPTED)])
def test_accepted_effect_leaves_its_tombstone(phases: tuple[Phase, ...]) -> None:
    """All of its events go, and its key is known by digest, place and guarantee."""
    memory = with_("other", "k", phases=phases)
    position = memory.head()

    assert pruning_all(memory, keep=lambda record: record.key == "other").finish() == 1

    tombstone = memory.pruned(key_form("k"))
    assert tombstone is not None
    assert tombstone.position == position
    assert (tombstone.record.key, tombstone.record.guarantee) == (digest(key_form("k")), Guarantee.AT_MOST_ONCE)
    assert (memory.phases("k"), memory.phases("other")) == ([], [phase.word for phase in phases])


def test_cleared_key_goes_without_a_trace_and_is_asked_about_by_nobody() -> None:
    """Its next call is new work before and after; it is no effect on record, and not counted."""
    memory = with_("k", phases=(INTENT, ACCEPTED, CLEARED))

    assert pruning_all(memory, keep=unused).finish() == 0
    assert (memory.phases("k"), memory.pruned(key_form("k"))) == ([], None)
    assert memory.notes == []


def test_only_what_was_settled_before_the_time_is_pruned() -> None:
    """The time itself is not before; a later event of another kind counts as well."""
    memory = with_("old")
    memory.at += 1
    memory.put_effect("new", INTENT)
    memory.put_effect("new", ACCEPTED)

    assert pruning_all(memory, before=memory.at).finish() == 1
    assert keys_of(memory) == ["new"]
    assert pruning_all(memory, before=0).finish() == 0
    assert pruning_all(memory, before=2**63 - 1).finish() == 1


def test_what_was_pruned_is_noted_once() -> None:
    """With how many and the time; nothing is said of nothing."""
    memory = with_("a", "b")
    pruning_all(memory).finish()
    pruning_all(memory).finish()

    (note,) = memory.notes
    assert (note.level, note.event) == ("info", "effects_pruned")
    assert note.facts == {"count": 2, "settled_before": LATER}


# The predicate


def test_predicate_is_asked_about_each_old_effect_outside_of_any_transaction() -> None:
    """With its record; what it says yes to stays, in the journal and for the next time."""
    memory = with_("a", "b", "c")
    asked: list[EffectRecord] = []

    def keep(record: EffectRecord) -> Any:
        asked.append(record)
        return record.key == "b"

    play = pruning_all(memory, keep=keep).run(Commit, Read, Decide, Decide, Decide, Commit)

    assert play.finish() == 2
    assert [(record.key, record.phase, record.proof) for record in asked] == [
        (key, "accepted", "proof") for key in ("a", "b", "c")
    ]
    assert keys_of(memory) == ["b"]


def test_predicate_that_raises_ends_the_pruning_with_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pruned stays pruned; of the page that it was asked about nothing is."""
    monkeypatch.setattr(pruning, "PAGE_RECORDS", 2)
    memory = with_("a", "b", "c", "d")
    error = StopIteration("mine")

    def keep(record: EffectRecord) -> bool:
        if record.key == "d":
            raise error
        return False

    with pytest.raises(RunRaisedError) as caught:
        pruning_all(memory, keep=keep).finish()

    assert caught.value.error is error
    assert keys_of(memory) == ["c", "d"]


def test_effect_that_moved_on_while_it_was_asked_about_stays() -> None:
    """It is pruned only where its last event still stands where it was looked at."""
    memory = with_("cleared", "gone", "new")
    play = pruning_all(memory).run(Commit, Read)
    memory.put_effect("cleared", CLEARED)
    memory.prune_key("gone")
    memory.put_effect("new", CLEARED)
    memory.put_effect("new", INTENT)

    assert play.does(Commit).finish() == 0
    assert memory.phases("cleared") == ["intent", "accepted", "cleared"]
    assert memory.phases("new")[-1] == "intent"


# Bounds


def test_transactions_are_bounded_by_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a page holds."""
    monkeypatch.setattr(pruning, "PRUNE_EFFECTS_MAX", 2)
    memory = with_(*"abcde")

    assert pruning_all(memory).run(Commit, Read, Commit, Commit, Commit).finish() == 5


def test_transactions_are_bounded_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """One effect goes whole, however many it has had; the next one then has to wait for another transaction."""
    monkeypatch.setattr(pruning, "PRUNE_EVENTS_MAX", 4)
    memory = with_(*"abc", phases=(INTENT, FAILED, INTENT, FAILED, INTENT, ACCEPTED))

    assert pruning_all(memory).run(Commit, Read, Commit, Commit, Commit).finish() == 3


def test_pages_are_looked_at_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is many records, and there may be millions that stay."""
    monkeypatch.setattr(pruning, "PAGE_RECORDS", 1)
    play = pruning_all(with_(*"ab"), before=0).does(Commit)

    assert play.expect(Read).is_long is True
    play.does(Read)
    assert play.expect(Read).is_long is True


def test_smaller_transactions_where_there_is_little_room() -> None:
    """Down to one effect each, which may use the reserve: pruning is what makes room. They grow again with success."""
    keys = [f"{number:03}" for number in range(PRUNE_EFFECTS_MAX)]
    memory = with_(*keys)
    play = pruning_all(memory).run(Commit, Read)
    size = PRUNE_EFFECTS_MAX
    while size > 1:
        assert play.expect(Commit).settles is False
        play.raises(Commit, FULL)
        size //= 2
    assert play.expect(Commit).settles is True
    play.does(Commit)
    assert play.expect(Commit).settles is False
    commits = memory.commits

    assert play.finish() == PRUNE_EFFECTS_MAX
    assert memory.commits - commits == 7


def test_no_room_for_a_single_effect_is_told() -> None:
    """Nothing of it was pruned."""
    memory = with_("k")
    play = pruning_all(memory).run(Commit, Read)

    with pytest.raises(JournalFullError):
        for _ in range(PRUNE_EFFECTS_MAX):
            play.raises(Commit, FULL)
    assert keys_of(memory) == ["k"]


# Wrong use


@pytest.mark.parametrize("time", [None, 1.5, True, "2020", b"1"])
def test_time_that_is_no_int_is_refused(time: Any) -> None:
    """Seconds are mostly a float; nothing is asked before."""
    with pytest.raises(TypeError, match="settled_before must be an int of nanoseconds"):
        pruning_all(Memory(), before=time)


@pytest.mark.parametrize("time", [-1, 2**63])
def test_time_that_no_clock_shows_is_refused(time: int) -> None:
    """With the value."""
    with pytest.raises(ValueError, match=f"settled_before must be nanoseconds .*{time}"):
        pruning_all(Memory(), before=time)


@pytest.mark.parametrize("keep", [True, "k", ["k"]])
def test_predicate_that_is_none_is_refused(keep: Any) -> None:
    """A list of keys is no predicate."""
    with pytest.raises(TypeError, match="keep must be a predicate"):
        pruning_all(Memory(), keep=keep)


def test_handle_that_may_not_write_asks_nobody() -> None:
    """The first thing is a commit of nothing."""
    with pytest.raises(JournalReadonlyError):
        pruning_all(with_("k"), keep=unused).raises(Commit, JournalReadonlyError("/journal"))


# A pruned key that comes again

CALLS: Final[list[Callable[[], Any]]] = [
    lambda: effect(at_most_once("k", unused), OWN),
    lambda: run_effect(idempotent("k", unused), OWN),
    lambda: record("k"),
    lambda: history("k"),
    lambda: resolve("k", Uncertain(), 2, "seen"),
]


@pytest.mark.parametrize("call", CALLS)
def test_pruned_key_is_refused_by_every_call(call: Callable[[], Any]) -> None:
    """That nothing is on record is no evidence that it did not run; nothing is called or written."""
    memory = with_("k")
    memory.prune_key("k")

    with pytest.raises(EffectPrunedError) as caught:
        Play(call(), memory).finish()

    assert (caught.value.key, caught.value.position) == ("k", 2)
    assert memory.head() == 2
    assert all(hold.ends == [None] for hold in memory.holds)


def test_handle_that_may_not_write_is_told_that_a_key_was_pruned() -> None:
    """It cannot find out by writing an intent; of any other key without a record it is told that it may not write."""
    memory = with_("k")
    memory.prune_key("k")
    error = JournalReadonlyError("/journal")

    with pytest.raises(EffectPrunedError):
        Play(settle(at_most_once("k", unused), 0), memory).does(Read).raises(Enter, error).does(Read)
    with pytest.raises(JournalReadonlyError):
        Play(settle(at_most_once("l", unused), 0), memory).does(Read).raises(Enter, error).does(Read)


def test_effect_pruned_while_it_runs_here_is_told() -> None:
    """A person said accepted meanwhile, and it was pruned: the record that would be returned is gone."""
    memory = Memory()
    play = Play(effect(at_most_once("k", lambda: "late"), OWN), memory).run(Read, Enter, Commit, Call)
    memory.put_effect("k", ACCEPTED, via=Via.RESOLVE)
    memory.prune_key("k")

    with pytest.raises(EffectPrunedError):
        play.run(Commit, Read)


def test_effect_that_vanished_while_it_ran_is_unresolved() -> None:
    """Accepted by a person, cleared, and the clearing pruned: nothing is left of it."""
    memory = Memory()
    play = Play(effect(at_most_once("k", lambda: "late"), OWN), memory).run(Read, Enter, Commit, Call)
    memory.put_effect("k", CLEARED)
    memory.prune_key("k")

    with pytest.raises(EffectUnresolvedError):
        play.run(Commit, Read)


def test_next_effect_of_a_walk_that_was_pruned_meanwhile_does_not_spoil_the_outcome() -> None:
    """The outcome is committed alone: an intent ahead is only where it may start."""
    memory = with_("next")
    play = Play(settle(at_most_once("k", lambda: "m"), OWN, following=at_most_once("next", unused)), memory)
    play.run(Read, Enter, Commit, Call, Enter)
    memory.prune_key("next")

    outcome = play.finish()

    assert (outcome.how, outcome.begun) == ("ran", None)
    assert memory.phases("k") == ["intent", "accepted"]
    assert memory.phases("next") == []


# History


def test_history_that_is_pruned_while_it_is_read_is_told() -> None:
    """Neither half of it is given, nor is it taken for damage."""
    memory = with_("k")
    play = Play(history("k"), memory).does(Read)
    memory.prune_key("k")

    with pytest.raises(EffectPrunedError):
        play.raises(Read, CorruptRecordError(1, "the index has it for this effect")).does(Read)


def test_history_of_a_key_that_began_anew_while_it_was_read_is_the_new_one() -> None:
    """It was cleared and pruned, and nothing or something came after."""
    for phases in ((), (INTENT, ACCEPTED)):
        memory = with_("k")
        play = Play(history("k"), memory).does(Read)
        memory.put_effect("k", CLEARED)
        memory.prune_key("k")
        for phase in phases:
            memory.put_effect("k", phase)

        events = play.raises(Read, CorruptRecordError(1, "it is not in the log")).finish()

        assert [event.phase for event in events] == [phase.word for phase in phases]


def test_damage_in_a_history_is_told() -> None:
    """Where the key still stands as it did."""
    memory = with_("k")
    memory.damaged.add(1)

    with pytest.raises(CorruptRecordError):
        Play(history("k"), memory).finish()


# Begin anew


def test_clearing_a_pruned_key_makes_its_next_call_new_work() -> None:
    """The clearing is an event with its reason; the record in the log names the key no more."""
    memory = with_("k")
    memory.prune_key("k")
    memory.alive[OWN] = 99

    play = Play(clear_effect("k", "the letter came back", OWN), memory).run(Read, Commit)

    assert play.is_done
    assert memory.pruned(key_form("k")) is None
    entry = memory.last("k")
    assert (entry.phase, entry.reason, entry.previous, entry.attempts) == (CLEARED, "the letter came back", 0, 0)
    assert memory.log[1][0] == PrunedRecord(2, memory.at - 1)
    assert Play(record("k"), memory).finish() is None
    again = Play(effect(at_most_once("k", lambda: "new"), OWN), memory).finish()
    assert again == Accepted("new", "run")
    assert memory.last("k").attempts == 1


def test_two_clearings_of_a_pruned_key_are_one() -> None:
    """The slower one finds nothing left to be cleared."""
    memory = with_("k")
    memory.prune_key("k")
    play = Play(clear_effect("k", "again", OWN), memory).does(Read)
    Play(clear_effect("k", "again", OWN), memory).finish()

    play.run(Commit, Read)

    assert play.is_done
    assert memory.phases("k") == ["cleared"]


@pytest.mark.parametrize("left", [None, PrunedRecord(1, START)])
def test_key_without_a_tombstone_is_not_revived(left: PrunedRecord | None) -> None:
    """Nor one whose record says of it what cannot be."""
    memory = Memory()
    if left is not None:
        memory.tombstones[key_form("k")] = Tombstone(1, left)

    assert memory.commit(revive(key_form("k"), "again")) is False
    assert memory.head() == 0


def test_resolving_a_key_that_is_unknown_is_a_conflict_still() -> None:
    """Only a tombstone says that it was pruned."""
    with pytest.raises(EffectConflictError):
        Play(resolve("k", Uncertain(), 2, "seen"), Memory()).finish()


# What takes its place in the log


def live(count: int) -> dict[int, Run | None]:
    """A log of so many live records."""
    return dict.fromkeys(range(1, count + 1))


def put(log: dict[int, Run | None], position: int, key: bytes | None, head: int) -> None:
    """Let a record of pruned events take a place, as a transaction does."""
    old = log[position]
    first = position if old is None else old.record.first
    own = Run(position, bytes([position]), PrunedRecord(first, 0, key))
    before = log.get(max((place for place in log if place < position), default=0))
    after = log.get(min((place for place in log if place > position), default=0))
    run, gone = covering(own, before, after, head)
    for place in gone:
        del log[place]
    log[run.position] = run


places = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=30)


@given(places, st.integers(1, 12))
def test_every_position_is_covered_once_and_every_tombstone_stands(moves: list[tuple[int, bool]], count: int) -> None:
    """Whatever is pruned in whatever order, while the log grows, and tombstones are forgotten."""
    log = live(count)
    head = count
    left = set(log)
    named: set[int] = set()
    for number, (position, leaves_tombstone) in enumerate(moves):
        is_named = leaves_tombstone and position in left
        if number % 3 == 2:
            head += 1
            log[head] = None
            left.add(head)
        if position in left:
            left.discard(position)
            named |= {position} if is_named else set()
        elif position in named:
            named.discard(position)  # forgotten
        else:
            continue
        put(log, position, b"key" if is_named else None, head)

        firsts = {place: place if run is None else run.record.first for place, run in log.items()}
        covered = [place for last, first in sorted(firsts.items()) for place in range(first, last + 1)]
        assert covered == list(range(1, head + 1))
        assert {place for place, run in log.items() if run is None} == left
        assert {place for place, run in log.items() if run is not None and run.record.key} == named
        assert all(run.digest == bytes([place]) for place, run in log.items() if run is not None)
        assert firsts[head] == head
        # One that names nothing stands before a live record, or before one that was the log's last at the time.
        anonymous = [place for place in log if log[place] is not None and place not in named]
        assert sum(place + 1 in firsts.values() and place + 1 not in left for place in anonymous) <= number // 3 + 1


def test_gap_in_the_log_is_not_covered_up() -> None:
    """What is missing is damage, and stays to be found."""
    before = Run(3, b"3", PrunedRecord(2, 0))
    after = Run(9, b"9", PrunedRecord(8, 0, b"key"))
    own = Run(6, b"6", PrunedRecord(6, 0))

    assert covering(own, before, after, 20) == (own, [])


@pytest.mark.parametrize("error", [Boom("mine"), KeyboardInterrupt()])
def test_what_cuts_a_pruning_off_is_raised_as_it_is(error: BaseException) -> None:
    """An exception of the predicate is carried out, an interrupt passes through."""
    play = pruning_all(with_("k"), keep=unused).run(Commit, Read)

    with pytest.raises(RunRaisedError if isinstance(error, Exception) else KeyboardInterrupt):
        play.raises(Decide, error)
