"""Two journals with the same calls, of which one prunes: it says the same of everything that it did not prune."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import journal
from journal import (
    Accepted,
    EffectFailedError,
    EffectPrunedError,
    EffectUnresolvedError,
    Journal,
    JournalError,
    NotPerformed,
    Uncertain,
)
from journal._core import pruning
from journal._storage import layout
from journal._storage.views import decode_record
from journal.records import PrunedRecord

EXAMPLE_COUNT = {"deep": 1_000, "quick": 15}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 50)
START = 1_700_000_000_000_000_000
KEYS: list[Any] = ["a", "ab", ("a", 1), "x" * 520 + "1", "x" * 520 + "2"]
GONE = (EffectPrunedError, "pruned")


class Boom(Exception):
    """What a run raises when nobody knows."""


def give(answer: Any) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


ANSWERS: list[Any] = ["m", {"id": 1}, NotPerformed("refused"), Boom("broke")]
FOUND: list[Any] = ["found", None, NotPerformed("not there"), Boom("cannot ask")]
keys, answers, found = st.sampled_from(KEYS), st.sampled_from(ANSWERS), st.sampled_from(FOUND)
calls = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["s", "t"])),
    st.tuples(st.just("effect"), keys, answers, found),
    st.tuples(st.just("effect"), keys, st.just("m"), st.just("found")),
    st.tuples(st.just("run_effect"), keys, answers),
    st.tuples(st.just("step"), keys),
    st.tuples(st.just("resolve"), keys, st.sampled_from([Accepted("by hand"), Uncertain(), NotPerformed("no")])),
    st.tuples(st.just("clear"), keys),
    st.tuples(st.just("prune"), st.integers(0, 40), st.sets(keys, max_size=2)),
    st.tuples(st.just("prune"), st.just(0), st.just(set())),
    st.tuples(st.just("reopen")),
)


class Twins:
    """A journal that prunes and one that does not."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self._paths = [folder / "prunes", folder / "keeps"]
        self.pruned: set[Any] = set()
        """The keys of which the one must say that they are pruned."""
        self.forgotten: set[Any] = set()
        """The keys of which earlier events are gone, whatever came after."""
        self.open()

    def open(self) -> None:
        self.one, self.other = (journal.open(path, clock=lambda: self.now) for path in self._paths)

    def close(self) -> None:
        self.one.close()
        self.other.close()

    def do(self, call: tuple[Any, ...]) -> None:
        self.now += 1
        name, *arguments = call
        if name == "reopen":
            self.close()
            self.open()
        elif name == "prune":
            self.prune(*arguments)
        else:
            one, other = (outcome_of(call_of(j, name, arguments)) for j in (self.one, self.other))
            if name in ("effect", "run_effect", "resolve") and arguments[0] in self.pruned:
                assert one == GONE
            else:
                assert one == other, call
            if name == "clear":
                self.forgotten |= {arguments[0]} & self.pruned
                self.pruned.discard(arguments[0])

    def prune(self, age: int, kept: set[Any]) -> None:
        before = self.now - age
        due = {
            record.key
            for record in self.other.effects(phase="accepted")
            if record.last_at < before and record.key not in kept | self.pruned
        }
        assert self.one.prune_effects(settled_before=before, keep=lambda record: record.key in kept) == len(due)
        self.pruned |= due
        self.forgotten |= {
            key
            for key in KEYS
            if (events := self.other.history(key)) and events[-1].phase == "cleared" and events[-1].at < before
        }

    def check(self) -> None:
        one, other = self.one, self.other
        assert one.head() == other.head()
        for after in range(one.head() + 1):
            assert list(one.read(after=after)) == list(other.read(after=after))
        assert seen(one.effects()) == seen(record for record in other.effects() if record.key not in self.pruned)
        assert seen(one.unfinished()) == seen(other.unfinished())
        for key in KEYS:
            events = seen(other.history(key))
            if key in self.pruned:
                assert outcome_of(partial(one.history, key)) == GONE
                assert outcome_of(partial(one.record, key)) == GONE
            else:
                mine = seen(one.history(key))
                assert mine == (events[len(events) - len(mine) :] if key in self.forgotten else events)
                assert seen([one.record(key)]) == seen([other.record(key)])
        assert one.stats().pruned == len(self.pruned)
        assert list(one.verify()) == list(other.verify()) == []
        self.check_log()

    def check_log(self) -> None:
        """Every position is covered once, and no live record was touched."""
        logs = []
        for j in (self.one, self.other):
            page = j._store.read(lambda view: view.page_of_log(0, 10_000))
            logs.append({position: decode_record(layout.head_of(position, value)) for position, value in page})
        covered = []
        for position, record in logs[0].items():
            first = record.first if isinstance(record, PrunedRecord) else position
            covered += list(range(first, position + 1))
            if not isinstance(record, PrunedRecord):
                assert type(record) is type(logs[1][position])
        assert covered == list(logs[1])


def call_of(j: Journal, name: str, arguments: list[Any]) -> Callable[[], Any]:
    """One call of a journal."""
    if name == "append":
        return lambda: j.append(arguments[0], 1, op_id=str(j.head()))
    key = arguments[0]
    return {
        "effect": lambda: j.effect(key, run=give(arguments[1]), reconcile=give(arguments[2])),
        "run_effect": lambda: j.run_effect(key, give(arguments[1])),
        "step": lambda: j.step(key, lambda: 1),
        "resolve": lambda: resolve(j, key, arguments[1]),
        "clear": lambda: j.clear_effect(key, reason="again"),
    }[name]


def resolve(j: Journal, key: Any, outcome: Any) -> None:
    record = j.record(key)
    j.resolve(key, outcome, expected_position=record.position if record else 1, reason="seen")


def outcome_of(call: Callable[[], Any]) -> Any:
    """What a call returned or raised, as a value."""
    try:
        return call()
    except EffectPrunedError:
        return GONE
    except (EffectFailedError, EffectUnresolvedError) as error:
        return type(error), error.reason
    except (JournalError, NotPerformed, Boom) as error:
        return type(error), str(error)


def seen(items: Any) -> list[Any]:
    """Records and events, without the owner that each journal has of its own.

    How many attempts there were before a clearing is gone with the events before it.
    """
    found = []
    for item in items:
        changes = {"attempt": 0} if item is not None and getattr(item, "phase", "") == "cleared" else {}
        found.append(None if item is None else msgspec.structs.replace(item, owner="", **changes))
    return found


@given(st.lists(calls, min_size=5, max_size=40), st.integers(1, 3))
@settings(max_examples=EXAMPLE_COUNT, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pruning_changes_no_other_answer(monkeypatch: pytest.MonkeyPatch, script: list[Any], size: int) -> None:
    """Whatever was called before and after, and however small the transactions."""
    monkeypatch.setattr(pruning, "PRUNE_EFFECTS_MAX", size)
    with tempfile.TemporaryDirectory() as folder:
        twins = Twins(Path(folder))
        try:
            for call in script:
                twins.do(call)
            twins.check()
            twins.prune(0, set())
            twins.check()
        finally:
            twins.close()
