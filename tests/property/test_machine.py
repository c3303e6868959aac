"""A rule machine that drives a journal and its twin with the same calls, restarts and deaths included."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from journal import Accepted, AlreadyCommitted, Committed, Journal, JournalError, NotPerformed, Settled
from tests.agreement.loops import AsyncFacade

from .model import Died, Interrupted, Key, Model, Operation, PlannedIntent, Refused, Script, Walk, starts_with
from .scripts import Boom, Dying, Plan, Silence, follow, intent_of, open_quietly, outcome_of, planned

EXAMPLE_COUNT, STEP_COUNT, STEP_COUNT_MIN = {
    "deep": (1_500, 60, 50_000),
    "quick": (20, 30, 0),
}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), (75, 50, 2_000))
"""How many examples of how many steps, and how many steps there must have been at the end."""

LONG = "x" * 520
KEYS: list[Key] = [
    "a",
    "ab",
    "b-1",
    LONG + "1",
    LONG + "b-2",
    ("a",),
    ("a", 1),
    ("b-1", 1),
    ("b-1", "1"),
    (7, LONG),
    ("s", 1, "1"),
]
"""Few, so that calls meet; those with a `b-` are always called with a request at first; the last one is of an operation."""

PREFIXES: list[Key] = ["a", LONG, ("a",), ("b-1",), (7,)]
STREAMS = ["s", "t"]

VALUES: list[Any] = [None, 1, "text", [1, {"a": None}], {"b": 1.5, "a": "é"}]
OUTCOMES: list[Script] = [*(("accepted", value) for value in VALUES[:2]), ("uncertain",), ("failed",)]
BODIES: list[Script] = [
    *(("returns", value) for value in VALUES),
    ("raises",),
    ("interrupts",),
    ("absent",),
    ("unkept",),
]
# Where a person says "not performed" while the run is under way, the contract leaves open what the owner is told.
RUNS: list[Script] = [*BODIES, *(("resolved", outcome) for outcome in OUTCOMES if outcome[0] != "failed")]
RECONCILES: list[Script] = [
    *(("finds", value) for value in VALUES[:3]),
    ("nothing",),
    ("absent",),
    ("absent",),
    ("raises",),
    ("interrupts",),
    ("unkept",),
]
REQUESTS: list[Any] = [None, {"x": 1, "y": 2}, {"y": 2, "x": 1}, {"x": 1, "y": 3}]

keys = st.sampled_from(KEYS)
outcomes, bodies, runs, reconciles, requests = map(st.sampled_from, (OUTCOMES, BODIES, RUNS, RECONCILES, REQUESTS))
contents = st.integers(0, len(KEYS) ** 2).map(lambda number: {"keys": sorted({number % 7, number // 7 % 11} - {10})})
places = st.integers(-1, 12)
seeds = st.integers(0, 2**16)

step_count = 0
dying: Dying


def is_bound(key: Key) -> bool:
    """Whether a key is called with a request."""
    return "b-" in (key if isinstance(key, str) else str(key[0]))


def answer_of(call: Callable[[], Any]) -> Any:
    """Gives what a call returned, or raised with the facts that matter."""
    try:
        return ("returned", call())
    except (KeyboardInterrupt, Interrupted):
        return ("interrupted",)
    except Refused as refused:
        return ("raised", refused.name, refused.facts)
    except JournalError as error:
        return ("raised", type(error).__name__, error)
    except (Boom, NotPerformed, TypeError) as error:
        return ("raised", type(error).__name__, error)


def same(model: Callable[[], Any], real: Callable[[], Any]) -> Any:
    """Makes the same call of both, asserts that the answers agree, and gives the twin's."""
    expected, actual = answer_of(model), answer_of(real)
    if expected[0] == "raised":
        assert actual[:2] == expected[:2], (expected, actual)
        assert {name: getattr(actual[2], name) for name in expected[2]} == expected[2]
    else:
        assert actual == expected
    return expected


def plain_operation(c: Any) -> tuple[Any, ...]:
    """Gives an answer of `append` as values."""
    if isinstance(c, AlreadyCommitted):
        return (c.stream, c.sequence, c.position, c.op_id, c.actor)
    assert isinstance(c, Committed)
    return (c.stream, c.sequence, c.position, c.op_id, c.actor, c.at, c.operation, c.epoch, c.repeated)


def plain_outcome(outcome: Any) -> tuple[Any, ...]:
    """Gives an outcome of `effect` as the twin does."""
    return ("accepted", outcome.proof, outcome.via) if isinstance(outcome, Accepted) else ("uncertain",)


def plain_record(record: Any) -> tuple[Any, ...]:
    """Gives what the contract says of a record, of the twin's as of the journal's."""
    is_settled = record.phase == "accepted"
    return (
        record.key,
        record.guarantee,
        record.phase,
        record.attempts,
        record.proof if is_settled else None,
        record.via if is_settled else None,
    )


def plain_event(event: Any) -> tuple[Any, ...]:
    """Gives what the contract says of an event, of the twin's as of the journal's."""
    return (
        event.position,
        event.at,
        event.phase,
        None if event.phase == "cleared" else event.attempt,
        event.proof if event.phase == "accepted" else None,
        event.via if event.phase in ("accepted", "uncertain") or event.via == "resolve" else None,
        event.reason if event.via == "resolve" or event.phase == "cleared" or event.attempt == 0 else None,
    )


class Twins(RuleBasedStateMachine):
    """The journal and its twin."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="journal-"))
        self.path = self.directory / "journal"
        self.model = Model(1_700_000_000_000_000_000)
        self.j = self.open()
        self.calls: list[str] = []

    def open(self, **options: Any) -> Journal:
        return open_quietly(self.path, clock=lambda: self.model.now, **options)

    def teardown(self) -> None:
        self.j.close()
        shutil.rmtree(self.directory)

    def same(self, model: Callable[[], Any], real: Callable[[], Any]) -> Any:
        """As the function, and the same scripts were followed."""
        global step_count
        step_count += 1
        self.model.now += 1
        self.model.calls, self.calls = [], []
        answer = same(model, real)
        assert self.calls == self.model.calls
        return answer

    def request(self, key: Key, drawn: Any) -> Any:
        """Gives a request that the contract speaks about: the first call of a key decides whether it is bound."""
        record = self.model.records.get(key)
        if record is None or record.request is None:
            return (drawn or {"x": 1, "y": 2}) if is_bound(key) else None
        return drawn

    def place(self, number: int) -> int:
        """Gives a cursor, for the most part one that is in the log."""
        return {-1: -1, 12: self.model.head + 1}.get(number, number * self.model.head // 11)

    def answers(self, found: list[tuple[Operation, bool]]) -> list[tuple[Any, ...]]:
        """Gives the twin's answers of `append`: those without content of what was compacted."""
        return [
            (o.stream, o.sequence, o.position, o.op_id, o.actor)
            if self.model.is_compacted(o)
            else (*vars(o).values(), repeated)
            for o, repeated in found
        ]

    # Operations

    @initialize()
    def begin(self) -> None:
        assert self.j.head() == 0

    @rule(
        stream=st.sampled_from(STREAMS),
        op_id=st.integers(1, 12).map(str),
        content=contents,
        actor=st.sampled_from(["", "", "ann"]),
        expected=st.one_of(st.none(), st.just(-1), st.integers(0, 8)),
    )
    def append(self, stream: str, op_id: str, content: Any, actor: str, expected: int | None) -> None:
        if expected == -1:
            expected = len(self.model.present(stream))
        self.same(
            lambda: self.answers(self.model.append_all(stream, [(op_id, content)], actor, expected)),
            lambda: [plain_operation(self.j.append(stream, content, op_id=op_id, actor=actor, expected=expected))],
        )

    @rule(
        stream=st.sampled_from(STREAMS),
        drafts=st.lists(st.tuples(st.integers(1, 12).map(str), contents), max_size=4),
        expected=st.one_of(st.none(), st.none(), st.integers(0, 8)),
    )
    def append_all(self, stream: str, drafts: list[tuple[str, Any]], expected: int | None) -> None:
        if not drafts:
            expected = None
        self.same(
            lambda: self.answers(self.model.append_all(stream, drafts, "", expected)),
            lambda: [plain_operation(c) for c in self.j.append_all(stream, drafts, expected=expected)],
        )

    @precondition(lambda self: self.model.present())
    @rule(number=seeds)
    def resend(self, number: int) -> None:
        known = self.model.present()
        o = known[number % len(known)]
        self.same(
            lambda: self.answers([(o, True)]),
            lambda: [
                plain_operation(self.j.append(o.stream, o.operation, op_id=o.op_id, actor=o.actor, expected=o.sequence))
            ],
        )

    @rule(
        stream=st.sampled_from([None, *STREAMS, "unknown"]),
        number=places,
        limit=st.one_of(st.none(), st.integers(1, 5)),
    )
    def read(self, stream: str | None, number: int, limit: int | None) -> None:
        after = self.place(number)
        self.same(
            lambda: [(*vars(o).values(), False) for o in self.model.read(stream, after, limit)],
            lambda: [plain_operation(c) for c in self.j.read(stream, after=after, limit=limit)],
        )

    @rule(
        stream=st.sampled_from([*STREAMS, *STREAMS, "unknown"]),
        number=places,
        past_cursors=st.sampled_from([[], ["c"], ["c", "d"], ["c", "d"]]),
        past_effects=st.sampled_from([[], KEYS[-1:]]),
    )
    def compact(self, stream: str, number: int, past_cursors: list[str], past_effects: list[Key]) -> None:
        through = self.place(number)
        self.same(
            lambda: self.model.compact(stream, through, past_cursors, past_effects),
            lambda: self.j.compact(stream, through, past_cursors=past_cursors, past_effects=past_effects),
        )

    @rule(stream=st.sampled_from([*STREAMS, "unknown"]))
    def reset(self, stream: str) -> None:
        self.same(lambda: self.model.reset(stream), lambda: self.j.reset(stream))

    # Effects

    @rule(key=keys, run=runs, reconcile=reconciles, drawn=requests)
    def effect(self, key: Key, run: Script, reconcile: Script, drawn: Any) -> None:
        request = self.request(key, drawn)
        self.same(
            lambda: self.model.effect(key, run, reconcile, request),
            lambda: plain_outcome(
                self.j.effect(
                    key,
                    run=follow(self.j, key, run, self.calls, "run"),
                    reconcile=follow(self.j, key, reconcile, self.calls, "reconcile"),
                    request=request,
                )
            ),
        )

    @precondition(lambda self: any(r.phase == "intent" for r in self.model.records.values()))
    @rule(number=seeds, run=runs, reconcile=reconciles)
    def settle(self, number: int, run: Script, reconcile: Script) -> None:
        """Calls an effect that is open, which chance alone seldom does."""
        open_keys = [r.key for r in self.model.effects(phase="intent") if r.guarantee == "at_most_once"]
        if open_keys:
            self.effect(open_keys[number % len(open_keys)], run, reconcile, None)

    @rule(key=keys, run=runs, drawn=requests, retry_failed=st.sampled_from([True, True, False]))
    def run_effect(self, key: Key, run: Script, drawn: Any, retry_failed: bool) -> None:
        request = self.request(key, drawn)
        self.same(
            lambda: self.model.run_effect(key, run, request, retry_failed=retry_failed),
            lambda: self.j.run_effect(
                key, follow(self.j, key, run, self.calls, "run"), request=request, retry_failed=retry_failed
            ),
        )

    @rule(key=keys, body=bodies)
    def step(self, key: Key, body: Script) -> None:
        self.same(
            lambda: self.model.step(key, body),
            lambda: self.j.step(key, follow(self.j, key, body, self.calls, "body")),
        )

    @precondition(lambda self: self.model.records)
    @rule(number=seeds, outcome=outcomes, stale=st.sampled_from([0, 0, 0, 1, -1]))
    def resolve(self, number: int, outcome: Script, stale: int) -> None:
        known = sorted(self.model.records, key=KEYS.index)
        key = known[number % len(known)]
        record = self.j.record(key)
        assert record is not None
        self.same(
            lambda: self.model.resolve(key, outcome, is_current=not stale),
            lambda: self.j.resolve(
                key, outcome_of(outcome), expected_position=record.position + stale, reason="person"
            ),
        )

    @rule(key=keys)
    def clear_effect(self, key: Key) -> None:
        self.same(lambda: self.model.clear_effect(key), lambda: self.j.clear_effect(key, reason="cleared"))

    # Recovery

    def plan(self, chance: random.Random, *, dies: bool) -> Plan:
        """Gives what each operation's effects will do, the same for a key each time it comes."""
        scripts = {
            key: (
                chance.choice(["at_most_once", "at_most_once", "idempotent"]),
                chance.choice(RUNS),
                chance.choice(RECONCILES),
                chance.choice(REQUESTS),
            )
            for key in KEYS
        }
        plan: Plan = {}
        for operation in self.model.operations:
            plan[operation.position] = []
            for index in operation.operation["keys"]:
                key = KEYS[index]
                guarantee, run, reconcile, drawn = scripts[key]
                record = self.model.records.get(key)
                if record is not None and chance.random() < 0.8:
                    guarantee = record.guarantee
                if dies:
                    run = reconcile = ("dies",)
                plan[operation.position].append(PlannedIntent(key, guarantee, run, reconcile, self.request(key, drawn)))
        return plan

    @precondition(lambda self: self.model.operations)
    @rule(
        seed=seeds,
        number=places,
        stream=st.sampled_from([None, None, *STREAMS]),
        limit=st.one_of(st.none(), st.integers(1, 4)),
        constant=st.sampled_from([None, "retry", "retry", "retry", "skip", "pass"]),
        on_uncertain=st.sampled_from(["accept", "accept", "stop"]),
    )
    def recover(
        self,
        *,
        seed: int,
        number: int,
        stream: str | None,
        limit: int | None,
        constant: str | None,
        on_uncertain: str,
    ) -> None:
        chance = random.Random(seed)
        cursor = self.model.floor() if number % 2 else self.place(number)
        plan = self.plan(chance, dies=False)
        answers = chance.choices(["retry", "retry", "retry", "pass", "skip"], k=len(KEYS))

        def policy(key: Key) -> str:
            return constant or answers[KEYS.index(key)]

        real: list[Settled] = []

        def walk() -> int:
            real.append(
                self.j.recover(
                    cursor,
                    intents=lambda c: [intent_of(self.j, p, self.calls) for p in planned(plan, c)],
                    stream=stream,
                    on_unresolved=constant or (lambda intent, _: policy(intent.key)),
                    on_uncertain=on_uncertain,
                    limit=limit,
                )
            )
            return int(real[0])

        expected: list[Walk] = []

        def walk_model() -> int:
            expected.append(
                self.model.recover(
                    cursor,
                    lambda o: planned(plan, o),
                    stream=stream,
                    on_unresolved=policy,
                    on_uncertain=lambda _: on_uncertain,
                    limit=limit,
                )
            )
            return expected[0].cursor

        if self.same(walk_model, walk)[0] == "returned":
            assert_same_walk(
                real[0],
                expected[0],
                is_skipping=constant == "skip" or "skip" in answers,
                was_decided=any(p.run[0] == "resolved" for own in plan.values() for p in own),
            )

    @precondition(lambda self: self.model.operations)
    @rule(seed=seeds, on_uncertain=st.sampled_from(["accept", "accept", "stop"]))
    def recover_everything(self, seed: int, on_uncertain: str) -> None:
        """The walk of a service that starts."""
        self.recover(seed=seed, number=1, stream=None, limit=None, constant="retry", on_uncertain=on_uncertain)

    @rule(
        name=st.sampled_from(["c", "d"]),
        number=places,
        stream=st.sampled_from([None, *STREAMS]),
    )
    def save_cursor(self, name: str, number: int, stream: str | None) -> None:
        cursor = self.place(number)
        self.same(
            lambda: self.model.save_cursor(name, cursor, stream),
            lambda: self.j.save_cursor(name, cursor, stream=stream),
        )

    # Restarts and deaths

    @rule()
    def restart(self) -> None:
        self.j.close()
        self.j = self.open()
        assert list(self.j.verify()) == []

    @rule()
    def restart_as_a_reader(self) -> None:
        """A read-only handle shows the same, and leaves it so."""
        self.j.close()
        self.j = self.open(readonly=True)
        self.log_is_the_same()
        self.effects_are_the_same()
        self.filters_are_the_same()
        self.numbering_has_no_gap()
        self.restart()

    @rule(key=keys, method=st.sampled_from(["effect", "effect", "run_effect", "step"]), drawn=requests)
    def die(self, key: Key, method: str, drawn: Any) -> None:
        """Another process makes a call and dies in its run, its reconcile or its body."""
        request, dies = self.request(key, drawn), ("dies",)
        arguments: tuple[Any, ...]
        if method == "effect":
            arguments = (key, dies, dies, request)
        elif method == "run_effect":
            arguments = (key, dies, request)
        else:
            arguments = (key, dies)
        self.let_die(lambda model: getattr(model, method)(*arguments), method, *arguments)

    @precondition(lambda self: self.model.operations)
    @rule(seed=seeds)
    def die_in_recover(self, seed: int) -> None:
        """Another process walks, and dies in the first run or reconcile that it comes to."""
        plan = self.plan(random.Random(seed), dies=True)
        plain = [
            (position, [(p.key, p.guarantee, p.run, p.reconcile, p.request) for p in own])
            for position, own in plan.items()
        ]
        self.let_die(
            lambda model: model.recover(
                model.floor(),
                lambda o: planned(plan, o),
                stream=None,
                on_unresolved=lambda _: "retry",
                on_uncertain=lambda _: "accept",
                limit=None,
            ),
            "recover",
            self.model.floor(),
            None,
            plain,
        )

    def let_die(self, model: Callable[[Model], Any], method: str, *arguments: Any) -> None:
        """Lets another process make the call where it would die in it, and the twin follow."""
        global step_count
        self.model.now += 1
        try:
            model(_copy(self.model))
        except Died:
            step_count += 1
            dying.call(self.path, self.model.now, method, *arguments)
            with pytest.raises(Died):
                model(self.model)
        except Refused:
            pass

    # What always holds

    @invariant()
    def log_is_the_same(self) -> None:
        assert self.j.head() == self.model.head
        assert self.j.streams() == self.model.streams()
        floor = self.model.floor()
        assert self.j.floor() == floor
        assert [plain_operation(c) for c in self.j.read(after=floor)] == [
            (*vars(o).values(), False) for o in self.model.read(None, floor)
        ]
        for stream in STREAMS:
            assert self.j.epoch(stream) == self.model.epochs.get(stream, 1)
            assert self.j.floor(stream) == self.model.floor(stream)
        for name in ("c", "d"):
            assert self.j.cursor(name) == self.model.cursors.get(name, 0)

    @invariant()
    def effects_are_the_same(self) -> None:
        assert list(map(plain_record, self.j.effects())) == list(map(plain_record, self.model.effects()))
        assert list(map(plain_record, self.j.unfinished())) == list(map(plain_record, self.model.unfinished()))
        for key in KEYS:
            record, twin = self.j.record(key), self.model.records.get(key)
            assert (record is None) == (twin is None)
            if record is not None and twin is not None:
                assert plain_record(record) == plain_record(twin)
                assert twin.was_passed or record.first_at == twin.first_at
                if twin.reason is not None and twin.phase in ("intent", "failed"):
                    assert record.reason == twin.reason
                    assert twin.phase == "failed" or record.error
            events = self.j.history(key)
            assert list(map(plain_event, events)) == list(map(plain_event, self.model.events.get(key, [])))
            if record is not None and events[-1].phase != "released":
                assert (record.position, record.last_at) == (events[-1].position, events[-1].at)

    @invariant()
    def filters_are_the_same(self) -> None:
        for prefix in PREFIXES:
            found = [record.key for record in self.j.effects(prefix=prefix)]
            assert found == [r.key for r in self.model.effects(prefix=prefix)]
            assert [r.key for r in self.j.unfinished(prefix=prefix)] == [
                r.key for r in self.model.unfinished() if starts_with(r.key, prefix)
            ]
        for phase in ("intent", "accepted", "uncertain", "failed"):
            assert [r.key for r in self.j.effects(phase=phase)] == [r.key for r in self.model.effects(phase=phase)]

    @invariant()
    def numbering_has_no_gap(self) -> None:
        taken = [o.position for o in self.model.operations] + self.model.other_positions
        for key in KEYS:
            taken.extend(e.position for e in self.j.history(key))
        assert sorted(taken) == list(range(1, self.j.head() + 1))
        for stream in self.j.streams():
            sequences = [c.sequence for c in self.j.read(stream, after=self.j.floor(stream))]
            last = len(self.model.present(stream))
            assert sequences == list(range(last - len(sequences) + 1, last + 1))


def _copy(model: Model) -> Model:
    return Model(
        model.now,
        model.head,
        list(model.operations),
        dict(model.records),
        {key: list(events) for key, events in model.events.items()},
        dict(model.steps),
        list(model.other_positions),
        dict(model.cursors),
        dict(model.cursor_streams),
        dict(model.floors),
        dict(model.epochs),
    )


class AsyncTwins(Twins):
    """An `AsyncJournal` and its twin."""

    def open(self, **options: Any) -> Journal:
        if not hasattr(self, "facade"):
            self.facade = AsyncFacade()
        opened: Journal = self.facade.open(self.path, logger=Silence(), clock=lambda: self.model.now, **options)
        return opened

    def teardown(self) -> None:
        super().teardown()
        self.facade.close()


def assert_same_walk(real: Settled, expected: Walk, *, is_skipping: bool, was_decided: bool) -> None:
    """Asserts that a walk says what the twin's says."""
    if expected.stopped is None:
        assert real.stopped is None
    else:
        position, key, reason = expected.stopped
        stop = real.stopped
        assert stop is not None
        assert (stop.position, stop.key) == (position, key)
        # Which of the two a conflict is that would be skipped anyway, the contract does not say.
        assert stop.reason == reason or (is_skipping and {stop.reason, reason} == {"conflict", "skipped"})
    assert real.passed == expected.passed
    # Which of the two an effect is that a person decided during its run, the contract does not say.
    assert real.ran + real.reused == expected.ran + expected.reused or expected.stopped is not None
    if not was_decided:
        assert real.reused == expected.reused
    if expected.became_uncertain == 0:
        assert real.reconciled == expected.reconciled
    if expected.stopped is None:
        assert real.uncertain == expected.uncertain


@pytest.mark.slow
@pytest.mark.timeout(3 * 60 * 60)
@pytest.mark.parametrize("machine", [Twins, AsyncTwins])
def test_journal_and_its_twin_agree(machine: type[Twins]) -> None:
    """In whatever order calls, restarts and deaths come, both answer, refuse and record the same."""
    global dying, step_count
    dying, step_count = Dying(), 0
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLE_COUNT,
                stateful_step_count=STEP_COUNT,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        dying.close()

    assert step_count >= STEP_COUNT_MIN
