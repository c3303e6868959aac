"""The journal in memory that the protocols are tested over, held against the real store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from journal._core.compaction import compact, reset
from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.operations import append
from journal._core.pruning import revive
from journal._core.requests import Commit, Enter, OperationPage, Read, StoredOperation
from journal._core.rules import Rules
from journal._storage.group import Entry
from journal.errors import CompactedCursorError, JournalError, Key
from journal.records import CursorRow, DroppingRow, Guarantee, OperationRecord, Phase, StepRecord, Via
from tests.unit.support import OWN, START, Memory, Play, open_store

KEYS: Final[list[Key]] = ["a", "ab", "b", ("a",), ("a", 1), ("a", "x\x00"), "k" * 600 + "1", "k" * 600 + "2", "k" * 509]
NOTHING: Final = OperationRecord("", 0, 0, "", "", 0, b"", 0)
"""In the place of operations that were compacted."""
STREAMS: Final = ("s", "st", "é")
PHASES: Final = (
    frozenset(Phase) - {Phase.CLEARED},
    frozenset({Phase.INTENT, Phase.RELEASED, Phase.FAILED}),
    frozenset({Phase.ACCEPTED}),
)


def effect_events() -> Iterator[Callable[[Any], Any]]:
    """Decisions that bring each key to another phase, and some of them there and back."""
    ways: list[list[Phase]] = [
        [Phase.INTENT],
        [Phase.INTENT, Phase.ACCEPTED],
        [Phase.INTENT, Phase.RELEASED, Phase.UNCERTAIN],
        [Phase.INTENT, Phase.RELEASED],
        [Phase.INTENT, Phase.FAILED],
        [Phase.INTENT, Phase.ACCEPTED, Phase.CLEARED],
        [Phase.INTENT, Phase.FAILED, Phase.INTENT, Phase.ACCEPTED],
        [Phase.FAILED],
        [Phase.INTENT, Phase.UNCERTAIN, Phase.CLEARED, Phase.INTENT],
    ]
    for key, way in zip(KEYS, ways, strict=True):
        for phase in way:
            yield moving(key_form(key), phase)


def moving(form: bytes, phase: Phase) -> Callable[[Any], Any]:
    """A decision that adds an event wherever the key stands."""

    def decide(txn: Any) -> Any:
        state = txn.effect(form)
        proof = b"1" if phase is Phase.ACCEPTED else None
        change = EffectChange(phase=phase, guarantee=Guarantee.AT_MOST_ONCE, via=Via.RUN, proof=proof, owner=OWN)
        return advance(form, 0 if state is None else state.position, change)(txn)

    return decide


def pruning(form: bytes) -> Callable[[Any], Any]:
    """A decision that prunes a key."""
    return lambda txn: txn.prune(txn.effect(form))


def tombstone(view: Any, form: bytes) -> Any:
    """What is left of a pruned effect; how many records it stands for is the store's own affair."""
    found = view.pruned(form)
    return None if found is None else (found.position, found.record.key, found.record.guarantee)


def decisions() -> list[Callable[[Any], Any]]:
    """What is committed to both, one after the other."""
    found: list[Callable[[Any], Any]] = [*effect_events()]
    for number, (stream, operation) in enumerate(itertools.product(STREAMS, range(3))):
        found.insert(3 * number, next(append(stream, [(f"op-{operation}", {"n": number})], "me", None, Rules())).decide)
    found.append(next(append("s", [("op-0", {"n": 0}), ("new", [])], "me", None, Rules())).decide)
    found.append(next(append("s", [("op-0", "another")], "me", None, Rules())).decide)
    found.append(lambda txn: txn.append(StepRecord(key_form("step"), txn.at, b"[1]")))
    found.append(lambda txn: txn.save_cursor("reader", CursorRow(3, "s", txn.at)))
    found.append(lambda txn: txn.head())
    found += [pruning(key_form(key)) for key in ("ab", ("a", "x\x00"), "k" * 600 + "1")]
    found.append(moving(key_form("ab"), Phase.INTENT))
    found.append(revive(key_form("ab"), "again"))
    found.append(revive(key_form("ab"), "again"))
    found.append(moving(key_form("ab"), Phase.INTENT))
    found.extend(compactions())
    return found


def compactions() -> Iterator[Callable[[Any], Any]]:
    """Decisions that compact, reset and fill streams, and drop what is to be dropped."""
    for stream, through in (("s", 3), ("é", 30), ("s", 3)):
        yield from committing(compact(stream, through, ["reader"], []))
    yield from committing(compact("st", 99, (), ()))
    yield from committing(reset("s"))
    yield next(append("s", [("op-0", {"n": 0}), ("op-2", "another")], "me", None, Rules())).decide
    yield lambda txn: txn.save_dropping("st", DroppingRow(2, 4))
    yield from committing(compact("s", 37, ["reader"], ()))
    yield lambda txn: txn.save_dropping("é", DroppingRow(1, 2))
    yield lambda txn: txn.drop_payloads("é", 1, 2, 10)
    yield from committing(reset("none"))


def committing(protocol: Any) -> Iterator[Callable[[Any], Any]]:
    """The decisions that a protocol asks for, none of which it is told to go on with for ever."""
    request = next(protocol)
    while True:
        if isinstance(request, Commit):
            yield request.decide
        try:
            request = protocol.send([] if isinstance(request, Read) else None)
        except (StopIteration, TypeError):
            return


def answers(view: Any) -> dict[str, Any]:
    """What a view says to every question."""
    found: dict[str, Any] = {
        "head": view.head(),
        "streams": view.streams(),
        "steps": [view.step(key_form(key)) for key in ("step", "a")],
        "cursors": [view.cursor(name) for name in ("reader", "s")],
        "saved cursors": view.saved_cursors(),
        "floors": view.floors(),
        "droppings": view.droppings(),
        "events": [view.effect_entry(state.position) for state in effects(view)],
        "operations": pages(view, None, 2),
    }
    for key in [*KEYS, "none"]:
        form = key_form(key)
        found[f"{key!r:.20} {len(form)}"] = (
            view.effect(form),
            view.glance(form),
            tombstone(view, form),
            [effects(view, phases, after=form, limit=3) for phases in PHASES],
            [effects(view, phases, prefix=form) for phases in PHASES],
        )
    for stream in (*STREAMS, "none"):
        found[stream] = (
            view.stream(stream),
            view.sequence(stream),
            [view.identity(stream, epoch, op_id) for epoch in (1, 2) for op_id in ("op-0", "op-2", "new", "none")],
            [pages(view, stream, limit) for limit in (1, 3)],
            [view.last_operation(stream, through) for through in (0, 3, 4, 8, 99)],
            (view.floor(stream), view.dropping(stream), view.snapshot(stream)),
        )
    return found


def effects(
    view: Any, phases: frozenset[Phase] = PHASES[0], *, prefix: bytes = b"", after: bytes = b"", limit: int = 100
) -> Any:
    """Effects as a view lists them; without anything said, all that are not cleared."""
    return view.effects(phases, prefix=prefix, after=after, limit=limit).states


def pages(view: Any, stream: str | None, limit: int) -> list[StoredOperation]:
    """All operations, page by page."""
    found: list[StoredOperation] = []
    page = OperationPage([], 0, ended=False)
    while not page.ended:
        try:
            page = view.operations(stream, page.through, limit)
        except CompactedCursorError as error:
            # What is gone is no other's: it goes on from the floor.
            page = OperationPage([], error.floor, ended=False)
            found.append(StoredOperation(error.floor, NOTHING, b""))
        assert len(page.operations) <= limit
        found += page.operations
    return found


def outcome_of(commit: Callable[[], Any]) -> Any:
    """What a commit answers, or the refusal."""
    try:
        return commit()
    except JournalError as error:
        return repr(error)


def test_memory_says_what_the_store_says(tmp_path: Path) -> None:
    """After every decision both answer every question alike, and refuse alike."""
    memory = Memory()
    # The first time is that of the header.
    times = itertools.count(START)
    store = open_store(tmp_path, clock=lambda: next(times))

    for decide in decisions():
        ours = outcome_of(partial(memory.commit, decide))
        theirs = outcome_of(partial(store.commit, decide))

        assert (theirs.answer if isinstance(theirs, Entry) else theirs) == ours
        assert store.read(answers) == answers(memory)
    assert memory.head() > 20
    assert [name for name, _ in memory.floors()] == ["s", "é"]
    store.close()


def test_refused_decision_leaves_nothing_in_memory() -> None:
    """A stand-in that kept half of a decision would hide what the store must drop."""
    memory = Memory()

    def decide(txn: Any) -> None:
        txn.append(StepRecord(b"\x01k", txn.at, b"1"))
        txn.save_cursor("reader", CursorRow(0, None, txn.at))
        raise KeyError("refused")

    with pytest.raises(KeyError):
        memory.commit(decide)

    assert (memory.log, memory.cursors, memory.commits) == ([], {}, 0)


def test_play_tells_another_request_than_expected() -> None:
    """A test that names the wrong request fails, and does not go on with another."""
    play = Play(append("s", [("1", "a")], "", None, Rules()), Memory())

    with pytest.raises(AssertionError):
        play.does(str)
    assert play.finish()[0].op_id == "1"
    with pytest.raises(AssertionError, match="it returned"):
        play.does(str)


def test_second_flight_of_a_key_is_not_given() -> None:
    """The stand-in has one flight a key, as the real one: a second call joins, or is told at once."""
    memory = Memory()
    request = Enter("step", "k", key_form("k"), None, None)

    assert memory.enter(request) is not None
    with pytest.raises(AssertionError, match="wait for ever"):
        memory.enter(request)
