"""`recover`: every sentence of the section on recovery but the one about concurrency above 1.

That one has a file of its own, `test_recover_concurrent.py`.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from journal import (
    Accepted,
    Committed,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectUnresolvedError,
    Intent,
    InvalidCursorError,
    Journal,
    JournalError,
    NotPerformed,
    Settled,
    Uncertain,
)

from .support import (
    Boom,
    Call,
    Gate,
    Key,
    Peer,
    Stub,
    accept,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)

LEAVE: dict[str, Callable[..., Any]] = {"accepted": accept, "open": leave_open, "failed": leave_failed}
Intents = Callable[[Committed], Iterable[Intent]]


def append(j: Journal, *operations: Any, stream: str = "s") -> list[int]:
    """Appends operations, one op_id each, and gives their positions."""
    positions = []
    for operation in operations:
        c = j.append(stream, operation, op_id=str(j.head()))
        positions.append(c.position)
    return positions


def one_each(run: Any, reconcile: Any = None, **options: Any) -> Intents:
    """Gives one intent for each operation, its key ("k", operation)."""
    return lambda c: [Intent(("k", c.operation), run, reconcile, **options)]


def by_operation(**intents: list[Intent]) -> Intents:
    """Gives the intents of an operation by its name."""
    return lambda c: intents[c.operation]


def effect(key: Key, run: Any = None, reconcile: Any = None, **options: Any) -> Intent:
    """Gives an intent that settles as `effect`."""
    return Intent(key, run or Stub("proof"), reconcile or unused(), **options)


def counts(settled: Settled) -> tuple[int, int, int, int, int]:
    """Gives ran, reused, reconciled, uncertain and passed."""
    return (settled.ran, settled.reused, settled.reconciled, settled.uncertain, settled.passed)


# The walk


def test_never_started_effects_run_in_order(j: Journal) -> None:
    """Each operation's effects run once, in log order, and everything through the last operation is settled."""
    append(j, "a", "b", "c")
    ran: list[str] = []

    def run(name: str) -> Callable[[], None]:
        return lambda: ran.append(name)

    settled = j.recover(0, intents=lambda c: [Intent((c.operation, n), run(f"{c.operation}{n}")) for n in (1, 2)])

    assert ran == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert settled == 3
    assert settled.stopped is None
    assert counts(settled) == (6, 0, 0, 0, 0)


def test_settled_is_the_cursor(j: Journal) -> None:
    """`Settled` is an int: the position of the last operation through which everything settled."""
    append(j, "a")
    accept(j, "between")
    append(j, "b")

    settled = j.recover(0, intents=one_each(Stub("proof")))

    assert isinstance(settled, int)
    assert isinstance(settled, Settled)
    assert settled == 4  # not the head: what comes after the last operation are effects
    assert j.head() == 8
    assert {4: 1}[settled] == 1
    assert settled + 1 == 5


def test_what_a_walk_says_is_frozen(j: Journal) -> None:
    """`Settled` and `Stop` are values like all that the API returns: nobody changes them."""
    append(j, "a")
    settled = j.recover(0, intents=one_each(Stub(Boom("no")), unused()))

    with pytest.raises(AttributeError):
        settled.ran = 7
    with pytest.raises(AttributeError):
        settled.stopped.reason = "skipped"  # type: ignore[union-attr, misc]  # the test knows that it is not None


def test_walk_over_nothing_gives_its_cursor(j: Journal) -> None:
    """Where no operation follows, the settled cursor is the one that was given."""
    assert j.recover(0, intents=unused()) == 0
    append(j, "a")
    accept(j, "k")

    settled = j.recover(2, intents=unused())

    assert (settled, settled.stopped, counts(settled)) == (2, None, (0, 0, 0, 0, 0))


def test_walk_begins_after_the_cursor(j: Journal) -> None:
    """Operations at or before the cursor are not looked at."""
    append(j, "a", "b", "c")
    seen: list[str] = []

    def intents(c: Committed) -> list[Intent]:
        seen.append(c.operation)
        return []

    assert j.recover(1, intents=intents) == 3
    assert seen == ["b", "c"]


def test_cursor_begins_at_the_start_unless_given(j: Journal) -> None:
    """`from_cursor` is 0 by default."""
    append(j, "a")

    assert j.recover(intents=one_each(Stub(1))) == 1


def test_next_walk_goes_on_where_the_last_one_settled(j: Journal) -> None:
    """The settled cursor is the next one's `from_cursor`."""
    append(j, "a", "b")
    first = j.recover(0, intents=one_each(Stub(1)))
    append(j, "c")

    second = j.recover(first, intents=one_each(Stub(1)))

    assert second == j.head() - 2
    assert counts(second) == (1, 0, 0, 0, 0)


def test_operation_without_intents_settles(j: Journal) -> None:
    """Nothing to do is done."""
    append(j, "a", "b")

    settled = j.recover(0, intents=lambda _: [])

    assert (settled, settled.stopped, counts(settled)) == (2, None, (0, 0, 0, 0, 0))
    assert j.head() == 2


@pytest.mark.parametrize("kind", [list, tuple, iter, "generator"], ids=str)
def test_intents_may_be_any_iterable(j: Journal, kind: Any) -> None:
    """Lists, tuples, iterators and generators are walked alike."""
    append(j, "a")

    def generator(c: Committed) -> Iterable[Intent]:
        yield Intent(("k", 1), Stub(1))
        yield Intent(("k", 2), Stub(2))

    settled = j.recover(0, intents=generator if kind == "generator" else lambda c: kind(list(generator(c))))

    assert (settled, settled.ran) == (1, 2)


def test_intents_are_given_what_was_committed(open_journal: Callable[..., Journal]) -> None:
    """`intents` takes the operation as `read` gives it."""
    j = open_journal(operation=dict[str, int])
    j.append("s", {"n": 1}, op_id="1", actor="ann")
    seen: list[Committed] = []

    def intents(c: Committed) -> list[Intent]:
        seen.append(c)
        return [Intent(c.effect_key("mail"), Stub(1))]

    j.recover(0, intents=intents)

    assert seen == list(j.read())
    assert j.record(seen[0].effect_key("mail")) is not None


def test_walk_may_be_of_one_stream(j: Journal) -> None:
    """With `stream=` only its operations are walked, and the cursor is the last of them."""
    append(j, "a1", stream="a")
    append(j, "b1", stream="b")
    append(j, "a2", stream="a")
    append(j, "b2", stream="b")

    settled = j.recover(0, intents=one_each(Stub(1)), stream="a")

    assert settled == 3
    assert [r.key for r in j.effects()] == [("k", "a1"), ("k", "a2")]
    assert j.recover(0, intents=unused(), stream="unknown") == 0


def test_long_tail_is_walked_whole(j: Journal) -> None:
    """However operations are read in pages, each is walked once, in order."""
    j.append_all("s", [(str(index), index) for index in range(2500)])
    seen: list[int] = []

    def intents(c: Committed) -> list[Intent]:
        seen.append(c.operation)
        return []

    assert j.recover(0, intents=intents) == 2500
    assert seen == list(range(2500))


@pytest.mark.parametrize("cursor", [-1, 2, 1_000])
def test_cursor_outside_the_log_is_refused(j: Journal, cursor: int) -> None:
    """A cursor past the head or negative raises, and nothing is started."""
    append(j, "a")

    with pytest.raises(InvalidCursorError) as caught:
        j.recover(cursor, intents=unused())

    assert (caught.value.cursor, caught.value.head) == (cursor, 1)


def test_intents_that_raise_raise(j: Journal) -> None:
    """An error of `intents` itself is the caller's, and no intent is left open by it."""
    append(j, "a", "b")
    boom = Boom("cannot decide")

    def intents(c: Committed) -> list[Intent]:
        if c.operation == "b":
            raise boom
        return [effect(("k", c.operation))]

    with pytest.raises(Boom) as caught:
        j.recover(0, intents=intents)

    assert caught.value is boom
    assert j.unfinished() == []


def test_intents_that_raise_in_the_middle_leave_no_open_intent(j: Journal) -> None:
    """The same where an operation's iterable raises after its first intent."""
    append(j, "a")
    boom = Boom("cannot decide")

    def intents(c: Committed) -> Iterable[Intent]:
        yield effect(("k", 1))
        raise boom

    with pytest.raises(Boom) as caught:
        j.recover(0, intents=intents)

    assert caught.value is boom
    assert j.unfinished() == []


# What each intent does


def test_intent_with_reconcile_settles_as_effect(j: Journal) -> None:
    """With `reconcile` the guarantee is `at_most_once`, without it is `idempotent`."""
    append(j, "a", "b")

    j.recover(0, intents=by_operation(a=[effect("a")], b=[Intent("b", Stub("result"))]))

    records = {r.key: (r.guarantee, r.phase, r.proof) for r in j.effects()}
    assert records == {"a": ("at_most_once", "accepted", "proof"), "b": ("idempotent", "accepted", "result")}
    assert accept(j, "a") == Accepted("proof", "run")
    assert j.run_effect("b", unused()) == "result"


def test_accepted_effect_is_reused(j: Journal) -> None:
    """Accepted: nobody is asked, nothing is written."""
    append(j, "a", "b")
    accept(j, ("k", "a"))
    j.run_effect("r", lambda: 1)
    head, called = j.head(), unused()

    settled = j.recover(
        0, intents=by_operation(a=[effect(("k", "a"), called, called)], b=[Intent("r", called)]), on_unresolved=called
    )

    assert (settled, counts(settled)) == (2, (0, 2, 0, 0, 0))
    assert (called.count, j.head()) == (0, head)


def test_open_intent_is_reconciled(j: Journal) -> None:
    """An intent without outcome is asked about, and counted as reconciled."""
    append(j, "a")
    leave_open(j, ("k", "a"))
    run = unused()

    settled = j.recover(0, intents=one_each(run, Stub("m-1")))

    assert (settled, counts(settled)) == (1, (0, 0, 1, 0, 0))
    assert run.count == 0
    assert j.effect(("k", "a"), run=unused(), reconcile=unused()) == Accepted("m-1", "reconcile")


def test_proved_absence_runs_and_counts_as_ran(j: Journal) -> None:
    """`NotPerformed` from `reconcile`: the effect runs in this walk."""
    append(j, "a")
    leave_open(j, ("k", "a"))

    settled = j.recover(0, intents=one_each(Stub("m-1"), Stub(NotPerformed("absent"))))

    assert (settled, settled.ran) == (1, 1)
    assert phases(j, ("k", "a")) == ["intent", "released", "failed", "intent", "accepted"]


def test_open_idempotent_intent_is_run_again(j: Journal) -> None:
    """Without `reconcile` an open intent is run again."""
    append(j, "a")
    with pytest.raises(KeyboardInterrupt):
        j.run_effect(("k", "a"), Stub(KeyboardInterrupt()))

    settled = j.recover(0, intents=one_each(Stub("done")))

    assert (settled, settled.ran) == (1, 1)
    assert j.run_effect(("k", "a"), unused()) == "done"


@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["run_effect", "effect"])
def test_failed_effect_is_run_again(j: Journal, reconcile: Any) -> None:
    """A failed record is retried by default."""
    append(j, "a")
    j.recover(0, intents=one_each(Stub(NotPerformed("no")), reconcile))

    settled = j.recover(0, intents=one_each(Stub("done"), reconcile))

    assert (settled, settled.ran) == (1, 1)
    record = j.record(("k", "a"))
    assert record is not None
    assert (record.phase, record.attempts) == ("accepted", 2)


def test_intents_options_are_those_of_the_direct_call(j: Journal) -> None:
    """`request`, `returns` and `reconcile_timeout` of an intent mean what they mean in `effect`."""
    append(j, "a")
    j.recover(0, intents=one_each(Stub((1, 2)), unused(), request={"amount": 1}, returns=tuple[int, int]))

    assert j.effect(("k", "a"), run=unused(), reconcile=unused(), returns=tuple[int, int]) == Accepted((1, 2), "run")
    with pytest.raises(EffectConflictError):
        accept(j, ("k", "a"), request={"amount": 2})


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_intents_reconcile_timeout_is_positive_and_finite(j: Journal, timeout: float) -> None:
    """A timeout that `effect` refuses is refused in a walk, and nothing is started."""
    append(j, "a")

    with pytest.raises(ValueError):
        j.recover(0, intents=one_each(unused(), unused(), reconcile_timeout=timeout))

    assert j.head() == 1


def test_key_twice_in_an_operation_runs_once(j: Journal) -> None:
    """The second intent of a key finds the first one's outcome."""
    append(j, "a")
    run = Stub("m-1")

    settled = j.recover(0, intents=by_operation(a=[effect("k", run), effect("other"), effect("k", run)]))

    assert (settled, settled.stopped) == (1, None)
    assert run.count == 1
    assert phases(j, "k") == ["intent", "accepted"]


def test_key_of_two_operations_runs_once(j: Journal) -> None:
    """Keys are global to the journal, also in a walk."""
    append(j, "a", "b")
    run = Stub("m-1")

    settled = j.recover(0, intents=by_operation(a=[effect("k", run)], b=[effect("k", run)]))

    assert (settled, counts(settled)) == (2, (1, 1, 0, 0, 0))
    assert run.count == 1


def test_recovering_twice_is_recovering_once(j: Journal) -> None:
    """The second walk calls nobody and writes nothing."""
    append(j, "a", "b", "c")
    intents = by_operation(a=[effect("a1"), effect("a2")], b=[], c=[Intent("c1", Stub(1))])
    j.recover(0, intents=intents)
    head = j.head()
    called = unused()

    settled = j.recover(
        0, intents=by_operation(a=[effect("a1", called), effect("a2", called)], b=[], c=[Intent("c1", called)])
    )

    assert (settled, settled.stopped, counts(settled)) == (3, None, (0, 3, 0, 0, 0))
    assert (called.count, j.head()) == (0, head)


# Where it stops

STOPS: dict[str, tuple[Callable[[], Intent], str, type[BaseException]]] = {
    "not performed": (lambda: effect("bad", Stub(NotPerformed("no"))), "failed", EffectFailedError),
    "idempotent run raises": (lambda: Intent("bad", Stub(Boom("no"))), "failed", Boom),
    "idempotent not performed": (lambda: Intent("bad", Stub(NotPerformed("no"))), "failed", NotPerformed),
    "run raises": (lambda: effect("bad", Stub(Boom("no"))), "unresolved", EffectUnresolvedError),
    "proof rejected": (lambda: effect("bad", Stub(float("nan"))), "unresolved", EffectUnresolvedError),
    "result rejected": (lambda: Intent("bad", Stub(float("nan"))), "unresolved", EffectUnresolvedError),
}


@pytest.mark.parametrize("name", STOPS)
def test_walk_stops_before_the_operation_whose_effect_failed(j: Journal, name: str) -> None:
    """It does not raise: it says where, at what, why, and with the exception that the direct call would raise."""
    make, reason, error = STOPS[name]
    append(j, "a", "b", "c")
    never = unused()

    settled = j.recover(
        0, intents=by_operation(a=[effect("fine")], b=[make(), effect("after", never)], c=[effect("c", never)])
    )

    assert settled == 1
    stop = settled.stopped
    assert stop is not None
    assert (stop.position, stop.stream, stop.op_id, stop.key, stop.reason) == (2, "s", "1", "bad", reason)
    assert type(stop.error) is error
    assert never.count == 0
    assert (j.record("after"), j.record("c")) == (None, None)


def test_stop_at_the_first_operation_gives_the_cursor_that_was_given(j: Journal) -> None:
    """Nothing settled: the settled cursor is `from_cursor`."""
    append(j, "a", "b")

    settled = j.recover(1, intents=one_each(Stub(Boom("no"))))

    assert settled == 1
    assert settled.stopped is not None


def test_what_settled_before_inside_the_stopped_operation_is_kept(j: Journal) -> None:
    """The next walk reuses it, and goes on with what failed."""
    append(j, "a")
    run, once = Stub(NotPerformed("no"), "m-2"), Stub("m-1")
    intents = by_operation(a=[effect("first", once), effect("second", run), effect("third")])
    first = j.recover(0, intents=intents)

    second = j.recover(first, intents=intents)

    assert first == 0
    assert (second, counts(second)) == (1, (2, 1, 0, 0, 0))
    assert (once.count, run.count) == (1, 2)


def test_unresolved_effect_is_reconciled_by_the_next_walk(j: Journal) -> None:
    """A run that raised stops one walk; the next one asks and goes on."""
    append(j, "a", "b")
    run = Stub(Boom("cut off"), "m-2")
    j.recover(0, intents=one_each(run, Stub("m-1")))

    settled = j.recover(0, intents=one_each(run, Stub("m-1")))

    assert (settled, counts(settled)) == (2, (1, 0, 1, 0, 0))
    assert run.count == 2


@pytest.mark.parametrize(
    "reconcile,reason",
    [(Stub(Boom("down")), "reconcile-failed"), (lambda s: s.wait(60), "reconcile-timeout")],
    ids=["raises", "overruns"],
)
def test_recipient_that_cannot_be_asked_stops_the_walk(j: Journal, reconcile: Any, reason: str) -> None:
    """An open intent stays open, and the walk stops there as unresolved."""
    append(j, "a")
    leave_open(j, ("k", "a"))

    settled = j.recover(0, intents=one_each(unused(), reconcile, reconcile_timeout=0.05))

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key) == (0, "unresolved", ("k", "a"))
    assert isinstance(stop.error, EffectUnresolvedError)
    assert stop.error.reason == reason


def test_effect_in_flight_elsewhere_stops_the_walk(
    open_journal: Callable[..., Journal], start_peer: Callable[..., Peer]
) -> None:
    """Another process is at it and does not end in time: `in_flight`, with the error that names it."""
    j = open_journal(wait_timeout=0.2)
    append(j, "a", "b")
    peer = start_peer("call", key=["k", "a"], run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")

    settled = j.recover(0, intents=one_each(unused(), unused()))

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key) == (0, "in_flight", ("k", "a"))
    assert isinstance(stop.error, EffectInFlightError)
    assert stop.error.pid == peer.pid
    peer.tell("return")
    peer.hear("accepted")
    assert counts(j.recover(0, intents=one_each(Stub(1), unused()))) == (1, 1, 0, 0, 0)


def test_walk_shares_a_run_in_flight_in_this_process(j: Journal) -> None:
    """A walk that comes to an effect in flight joins it like any call."""
    append(j, "a")
    gate = Gate("m-1")
    owner = Call(lambda: j.effect(("k", "a"), run=gate, reconcile=unused()))
    gate.wait_until_entered()
    walk = Call(lambda: j.recover(0, intents=one_each(unused(), unused())))
    walk.wait_until_it_waits()
    gate.open()

    assert owner.result() == Accepted("m-1", "run")
    assert (walk.result(), walk.result().stopped) == (1, None)
    assert gate.count == 1


@pytest.mark.parametrize("kind", ["request", "guarantee"])
@pytest.mark.parametrize("phase", ["accepted", "open", "failed"])
def test_changed_request_or_guarantee_stops_the_walk(j: Journal, phase: str, kind: str) -> None:
    """A conflict stops the walk with its key, and nothing is called."""
    append(j, "a", "b")
    LEAVE[phase](j, ("k", "a"), request=1)
    called = unused()
    intents = one_each(called, called, request=2) if kind == "request" else one_each(called)

    settled = j.recover(0, intents=intents)

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key, stop.position) == (0, "conflict", ("k", "a"), 1)
    assert isinstance(stop.error, EffectConflictError)
    assert called.count == 0


@pytest.mark.parametrize("kind", ["request", "guarantee"])
def test_conflict_can_be_passed(j: Journal, kind: str) -> None:
    """`on_unresolved` lets a walk go on past a changed request or guarantee, which stays as it is."""
    append(j, "a", "b")
    leave_failed(j, ("k", "a"), request=1)
    before = j.record(("k", "a"))
    run = Stub("m-1")
    intents = one_each(run, unused(), request=2) if kind == "request" else one_each(run)

    settled = j.recover(0, intents=intents, on_unresolved=lambda i, _: "pass" if i.key == ("k", "a") else "retry")

    assert (settled, settled.stopped, settled.passed, settled.ran) == (2, None, 1, 1)
    assert j.record(("k", "a")) == before


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_what_is_no_exception_passes_through_the_walk(j: Journal, interrupt: BaseException) -> None:
    """A `BaseException` of a run ends the walk as it is; the intent stands, and nothing later is started."""
    append(j, "a", "b", "c")

    with pytest.raises(type(interrupt)) as caught:
        j.recover(0, intents=one_each(Stub("m-1", interrupt), unused()))

    assert caught.value is interrupt
    assert [(r.key, r.phase) for r in j.effects()] == [(("k", "a"), "accepted"), (("k", "b"), "intent")]


# on_uncertain


def with_uncertain(j: Journal, *, when: str) -> Intents:
    """Two operations; the first one's effect is uncertain from before, or becomes so in the walk."""
    append(j, "a", "b")
    if when == "before":
        leave_uncertain(j, ("k", "a"))
    else:
        leave_open(j, ("k", "a"))
    run = Stub("m-1")
    return one_each(run, Stub(None))


@pytest.mark.parametrize("when", ["before", "in this walk"])
@pytest.mark.parametrize("policy", ["default", "accept", "callable"])
def test_uncertain_effect_is_accepted(j: Journal, when: str, policy: str) -> None:
    """`on_uncertain="accept"`, the default: the walk goes on, and counts it."""
    intents = with_uncertain(j, when=when)
    policies: dict[str, dict[str, Any]] = {
        "default": {},
        "accept": {"on_uncertain": "accept"},
        "callable": {"on_uncertain": lambda *_: "accept"},
    }

    settled = j.recover(0, intents=intents, **policies[policy])

    assert (settled, settled.stopped) == (2, None)
    assert (settled.uncertain, settled.ran) == (1, 1)


@pytest.mark.parametrize("when", ["before", "in this walk"])
@pytest.mark.parametrize("policy", ["stop", "callable"])
def test_uncertain_effect_stops_the_walk_when_told(j: Journal, when: str, policy: str) -> None:
    """`on_uncertain="stop"`: the walk stops before the operation, as `uncertain`, and nothing later starts."""
    intents = with_uncertain(j, when=when)

    settled = j.recover(0, intents=intents, on_uncertain="stop" if policy == "stop" else lambda *_: "stop")

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key, stop.position) == (0, "uncertain", ("k", "a"), 1)
    assert j.record(("k", "b")) is None
    assert j.effect(("k", "a"), run=unused(), reconcile=unused()) == Uncertain()


def test_policy_for_the_uncertain_takes_intent_and_record(j: Journal) -> None:
    """A callable is given the intent and its record, once for each uncertain effect."""
    intents = with_uncertain(j, when="before")
    policy = Stub("accept")

    j.recover(0, intents=intents, on_uncertain=policy)

    ((intent, record),) = policy.calls
    assert isinstance(intent, Intent)
    assert intent.key == record.key == ("k", "a")
    assert record.phase == "uncertain"


def test_uncertain_is_not_unresolved(j: Journal) -> None:
    """`on_unresolved` is not asked about an effect that was uncertain before."""
    append(j, "a")
    leave_uncertain(j, ("k", "a"))
    policy = unused()

    assert j.recover(0, intents=one_each(unused(), unused()), on_unresolved=policy) == 1
    assert policy.count == 0


def test_idempotent_effect_that_a_person_called_uncertain_is_asked_about(j: Journal) -> None:
    """Uncertain by a person's word is uncertain: `on_uncertain` decides."""
    append(j, "a", "b")
    with pytest.raises(Boom):
        j.run_effect(("k", "a"), Stub(Boom("no")))
    record = j.record(("k", "a"))
    assert record is not None
    j.resolve(("k", "a"), Uncertain(), expected_position=record.position, reason="r")

    stopped = j.recover(0, intents=one_each(Stub("m-1")), on_uncertain="stop")
    settled = j.recover(0, intents=one_each(Stub("m-1")), on_uncertain="accept")

    assert stopped.stopped is not None
    assert (stopped, stopped.stopped.reason) == (0, "uncertain")
    assert (settled, settled.stopped, settled.uncertain, settled.ran) == (2, None, 1, 1)


@pytest.mark.parametrize("policy", ["accept", "stop"])
@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["run_effect", "effect"])
def test_effect_that_a_person_calls_uncertain_during_its_run_is_asked_about(
    j: Journal, reconcile: Any, policy: str
) -> None:
    """Uncertain from this walk is uncertain, under either guarantee: `on_uncertain` decides."""
    append(j, "a", "b")

    def run() -> str:
        record = j.record("first")
        assert record is not None
        Call(lambda: j.resolve("first", Uncertain(), expected_position=record.position, reason="r")).result()
        return "late"

    settled = j.recover(
        0, intents=by_operation(a=[Intent("first", run, reconcile)], b=[effect("second")]), on_uncertain=policy
    )

    if policy == "accept":
        assert (settled, settled.stopped, settled.uncertain) == (2, None, 1)
    else:
        assert settled.stopped is not None
        assert (settled, settled.stopped.reason, settled.stopped.key) == (0, "uncertain", "first")


# on_unresolved


def test_policy_takes_intent_and_record(j: Journal) -> None:
    """A callable is given the intent, and its record or None, for what is neither accepted nor uncertain."""
    append(j, "new", "open", "failed", "accepted")
    leave_open(j, ("k", "open"))
    leave_failed(j, ("k", "failed"))
    accept(j, ("k", "accepted"))
    policy = Stub("retry")

    settled = j.recover(0, intents=one_each(Stub("m-1"), Stub("m-1")), on_unresolved=policy)

    assert settled == 4
    asked = [(intent.key[1], record and record.phase) for intent, record in policy.calls]
    assert asked == [("new", None), ("open", "intent"), ("failed", "failed")]


@pytest.mark.parametrize("how", ["constant", "callable"])
@pytest.mark.parametrize("phase", ["new", "open", "failed"])
def test_skip_stops_before_the_operation(j: Journal, phase: str, how: str) -> None:
    """`"skip"` stops before the operation, for a never-started effect too; nothing is called or written."""
    append(j, "a", "b")
    if phase != "new":
        LEAVE[phase](j, ("k", "b"))
    accept(j, ("k", "a"))
    head, called = j.head(), unused()

    settled = j.recover(
        0, intents=one_each(called, called), on_unresolved="skip" if how == "constant" else lambda *_: "skip"
    )

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key, stop.position) == (1, "skipped", ("k", "b"), 2)
    assert (called.count, j.head()) == (0, head)


@pytest.mark.parametrize("how", ["constant", "callable"])
@pytest.mark.parametrize("phase", ["open", "failed"])
def test_pass_leaves_an_unfinished_effect_and_goes_on(j: Journal, phase: str, how: str) -> None:
    """`"pass"`: nothing is called or written, the record stays, and the walk goes on past it."""
    append(j, "a", "b")
    LEAVE[phase](j, ("k", "a"))
    accept(j, ("k", "b"))
    head, before, called = j.head(), j.record(("k", "a")), unused()

    settled = j.recover(
        0, intents=one_each(called, called), on_unresolved="pass" if how == "constant" else lambda *_: "pass"
    )

    assert (settled, settled.stopped, counts(settled)) == (2, None, (0, 1, 0, 0, 1))
    assert (called.count, j.head(), j.record(("k", "a"))) == (0, head, before)


@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["idempotent", "at_most_once"])
def test_passed_effect_that_never_started_is_listed(j: Journal, reconcile: Any) -> None:
    """It is recorded as failed, reason `passed`, 0 attempts, and bound as by an intent."""
    append(j, "a", "b")
    called = unused()

    settled = j.recover(0, intents=one_each(called, reconcile, request={"amount": 1}), on_unresolved="pass")

    assert (settled, settled.stopped, counts(settled)) == (2, None, (0, 0, 0, 0, 2))
    assert called.count == 0
    unfinished = j.unfinished()
    assert [r.key for r in unfinished] == [("k", "a"), ("k", "b")]
    guarantee = "idempotent" if reconcile is None else "at_most_once"
    assert {(r.phase, r.reason, r.attempts, r.guarantee) for r in unfinished} == {("failed", "passed", 0, guarantee)}
    with pytest.raises(EffectConflictError):
        _call(j, guarantee, request={"amount": 2})
    with pytest.raises(EffectConflictError):
        _call(j, "at_most_once" if guarantee == "idempotent" else "idempotent", request={"amount": 1})


def _call(j: Journal, guarantee: str, *, request: Any) -> None:
    if guarantee == "idempotent":
        j.run_effect(("k", "a"), unused(), request=request)
    else:
        j.effect(("k", "a"), run=unused(), reconcile=unused(), request=request)


def test_passed_effect_runs_when_it_is_no_longer_passed(j: Journal) -> None:
    """The next walk that retries runs it, as attempt 1, and nobody is asked."""
    append(j, "a")
    j.recover(0, intents=one_each(unused(), unused()), on_unresolved="pass")

    settled = j.recover(0, intents=one_each(Stub("m-1"), unused()))

    assert (settled, settled.ran) == (1, 1)
    record = j.record(("k", "a"))
    assert record is not None
    assert (record.phase, record.attempts) == ("accepted", 1)
    assert phases(j, ("k", "a")) == ["failed", "intent", "accepted"]


def test_effect_passed_before_its_first_attempt_is_no_retry(j: Journal) -> None:
    """Who refuses to retry what failed still runs what was never tried."""
    append(j, "1")
    j.recover(intents=lambda _: [Intent("k", run=unused())], on_unresolved="pass")

    assert j.run_effect("k", lambda: "done", retry_failed=False) == "done"


def test_passing_twice_writes_once(j: Journal) -> None:
    """An effect that was passed before is an unfinished one: passing it again writes nothing."""
    append(j, "a")
    j.recover(0, intents=one_each(unused(), unused()), on_unresolved="pass")

    settled = j.recover(0, intents=one_each(unused(), unused()), on_unresolved="pass")

    assert (settled, settled.passed, j.head()) == (1, 1, 2)


def test_passing_one_of_an_operation_goes_on_with_the_others(j: Journal) -> None:
    """One poisoned effect need not hold up the rest, of its own operation as of later ones."""
    append(j, "a", "b")
    never = unused()
    intents = by_operation(a=[effect("a1"), effect("poison", never), effect("a3")], b=[effect("b1")])

    settled = j.recover(0, intents=intents, on_unresolved=lambda i, _: "pass" if i.key == "poison" else "retry")

    assert (settled, settled.stopped, counts(settled)) == (2, None, (3, 0, 0, 0, 1))
    assert never.count == 0
    assert [r.key for r in j.unfinished()] == ["poison"]


@pytest.mark.parametrize("state", ["accepted", "in flight"])
def test_passing_overwrites_nothing_that_came_meanwhile(j: Journal, state: str) -> None:
    """The policy was asked about an effect without record; what somebody else began since then stands."""
    append(j, "a")
    gate = Gate("theirs")
    calls: list[Call[Any]] = []

    def policy(*_: Any) -> str:
        calls.append(Call(lambda: j.effect("k", run=gate, reconcile=unused())))
        gate.wait_until_entered()
        if state == "accepted":
            gate.open()
            calls[0].result()
        return "pass"

    settled = j.recover(0, intents=by_operation(a=[effect("k", unused())]), on_unresolved=policy)
    gate.open()

    assert (settled, settled.stopped) == (1, None)
    assert calls[0].result() == Accepted("theirs", "run")
    assert phases(j, "k") == ["intent", "accepted"]


@pytest.mark.parametrize("who", ["on_unresolved", "on_uncertain", "progress"])
def test_callers_function_that_raises_leaves_nothing_begun(j: Journal, who: str) -> None:
    """Its exception goes on as it is; no intent stays open, and the next walk settles everything."""
    append(j, "a", "b", "c")
    accept(j, ("k", "a"))
    if who == "on_uncertain":
        leave_uncertain(j, ("k", "b"))
    boom = Boom("policy")
    options: dict[str, Any] = {who: Stub(boom)}

    with pytest.raises(Boom) as caught:
        j.recover(0, intents=one_each(Stub("m-1"), unused()), **options)

    assert caught.value is boom
    assert j.unfinished() == []
    assert j.recover(0, intents=one_each(Stub("m-1"), unused())) == 3


@pytest.mark.parametrize("error", [Boom("no"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("who", ["intents", "on_unresolved", "progress"])
def test_callers_function_that_ends_the_walk_leaves_no_open_intent(j: Journal, who: str, error: BaseException) -> None:
    """Whatever it raises: an intent that came with the outcome before, and was not run, is taken back."""
    append(j, "a", "b", "c")
    asked = {"intents": Stub("", "", error), "on_unresolved": Stub("", "", error), "progress": Stub(error)}[who]

    def intents(c: Committed) -> list[Intent]:
        if who == "intents":
            asked(c)
        return [effect(("k", c.operation))]

    def policy(intent: Intent, record: Any) -> str:
        if who == "on_unresolved":
            asked(intent)
        return "retry"

    try:
        j.recover(0, intents=intents, on_unresolved=policy, progress=asked if who == "progress" else None)
    except BaseException as raised:
        # Where it comes too early to matter (an exception of `intents` waits for the effects before), all the better.
        assert raised is error

    assert j.record(("k", "c")) is None
    assert [record.phase for record in j.effects(phase="intent")] == []
    assert j.recover(0, intents=one_each(Stub("m-1"), unused())) == 3


def test_call_for_its_own_key_inside_a_walk_is_refused(j: Journal) -> None:
    """A run of a walk is a run: its own key is refused inside it, other keys are not, and are reused after it."""
    append(j, "a", "b")
    errors: list[BaseException] = []

    def run() -> str:
        try:
            j.effect("first", run=unused(), reconcile=unused())
        except EffectInFlightError as error:
            errors.append(error)
        accept(j, "second", "from inside")
        return "m-1"

    settled = j.recover(0, intents=by_operation(a=[effect("first", run)], b=[effect("second", unused())]))

    (error,) = errors
    assert isinstance(error, EffectInFlightError)
    assert error.key == "first"
    assert (settled, counts(settled)) == (2, (1, 1, 0, 0, 0))


# Wrong use

BAD_ANSWERS = [None, "", "Retry", "stop", True, 1]


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=repr)
@pytest.mark.parametrize("how", ["constant", "callable"])
def test_other_answer_about_the_unresolved_raises(j: Journal, how: str, answer: Any) -> None:
    """A policy that says none of the three raises, and nothing is started."""
    append(j, "a")
    called = unused()

    with pytest.raises((TypeError, ValueError)):
        j.recover(
            0, intents=one_each(called, called), on_unresolved=answer if how == "constant" else (lambda *_: answer)
        )

    assert (called.count, j.head()) == (0, 1)


@pytest.mark.parametrize("answer", [None, "", "skip", "retry", True], ids=repr)
@pytest.mark.parametrize("how", ["constant", "callable"])
def test_other_answer_about_the_uncertain_raises(j: Journal, how: str, answer: Any) -> None:
    """A policy that says neither raises, and nothing is started."""
    append(j, "a")
    leave_uncertain(j, ("k", "a"))
    head, called = j.head(), unused()

    with pytest.raises((TypeError, ValueError)):
        j.recover(
            0, intents=one_each(called, called), on_uncertain=answer if how == "constant" else (lambda *_: answer)
        )

    assert (called.count, j.head()) == (0, head)


@pytest.mark.parametrize("options", [{"on_unresolved": "nonsense"}, {"on_uncertain": "nonsense"}], ids=repr)
def test_wrong_constant_raises_before_anything_needs_it(j: Journal, options: dict[str, Any]) -> None:
    """A constant that is no answer is refused at the call, whatever the walk would meet."""
    append(j, "a")

    with pytest.raises((TypeError, ValueError)):
        j.recover(0, intents=one_each(Stub("m-1"), unused()), **options)

    assert j.head() == 1


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"concurrency": -1}, {"limit": 0}, {"limit": -1}], ids=repr)
def test_concurrency_and_limit_are_at_least_one(j: Journal, options: dict[str, Any]) -> None:
    """Below 1 raises, and nothing is started."""
    append(j, "a")

    with pytest.raises(ValueError):
        j.recover(0, intents=unused(), **options)

    assert j.head() == 1


# limit and progress


def test_limit_ends_the_walk_after_so_many_operations(j: Journal) -> None:
    """`limit=n` ends after n operations, settled; the next walk goes on there."""
    append(j, "a", "b", "c")
    first = j.recover(0, intents=one_each(Stub(1)), limit=2)
    rest = j.recover(first, intents=one_each(Stub(1)), limit=2)

    assert (first, first.stopped, first.ran) == (2, None, 2)
    assert (rest, rest.stopped, rest.ran) == (3, None, 1)


def test_limit_starts_nothing_later(j: Journal) -> None:
    """The operation after the last one has no intent."""
    append(j, "a", "b")

    j.recover(0, intents=one_each(Stub(1)), limit=1)

    assert j.record(("k", "b")) is None


def test_progress_is_told_at_the_end(j: Journal) -> None:
    """`progress(cursor, head)` is called once at the end with the settled cursor, and cursors never go back."""
    append(j, *range(20))
    told: list[tuple[int, int]] = []

    settled = j.recover(0, intents=one_each(Stub(1)), progress=lambda cursor, head: told.append((cursor, head)))

    assert told[-1][0] == settled == 20
    assert [cursor for cursor, _ in told] == sorted(cursor for cursor, _ in told)
    assert all(cursor <= head for cursor, head in told)


def test_progress_is_told_at_the_end_of_a_stopped_walk(j: Journal) -> None:
    """A walk that stops says how far it came."""
    append(j, "a", "b")
    told: list[int] = []

    j.recover(0, intents=one_each(Stub("m", Boom("no")), unused()), progress=lambda cursor, _: told.append(cursor))

    assert told[-1] == 1


def test_progress_is_not_told_too_often(j: Journal) -> None:
    """At most ten times a second, and once at the end."""
    j.append_all("s", [(str(index), index) for index in range(5_000)])
    told = Stub(None)
    begun = time.monotonic()

    j.recover(0, intents=lambda _: [], progress=told)

    assert 1 <= told.count <= (time.monotonic() - begun) * 10 + 2


# No user code between a run's return and the commit of its outcome


def test_each_outcome_is_recorded_before_the_next_user_code(j: Journal) -> None:
    """Whatever of the caller's is called after a run returned, that run's outcome is on record."""
    append(j, *range(6))
    returned: list[Key] = []
    seen: list[str] = []

    def check(who: str) -> None:
        seen.append(who)
        for key in returned:
            record = j.record(key)
            assert record is not None, (who, key)
            assert record.phase == "accepted", (who, key)

    def run(key: Key) -> Callable[[], str]:
        def work() -> str:
            check("run")
            record = j.record(key)
            assert record is not None
            assert record.phase == "intent"
            returned.append(key)
            return "proof"

        return work

    def intents(c: Committed) -> Iterable[Intent]:
        check("intents")
        for n in range(3):
            key: Key = (c.operation, n)
            yield Intent(key, run(key), unused() if n % 2 else None)
            check("iterable")

    def policy(*_: Any) -> str:
        check("policy")
        return "retry"

    settled = j.recover(
        0, intents=intents, on_unresolved=policy, on_uncertain=policy, progress=lambda *_: check("progress")
    )

    assert (settled, settled.stopped, settled.ran) == (6, None, 18)
    assert set(seen) == {"run", "intents", "iterable", "policy", "progress"}


@pytest.mark.parametrize("policy", ["constant", "callable"])
def test_failed_outcome_takes_no_next_intent_with_it(j: Journal, policy: str) -> None:
    """Where the walk stops at an effect, the next one's intent is not on record, however commits are shared."""
    options: dict[str, Any] = {} if policy == "constant" else {"on_unresolved": lambda *_: "retry"}
    for name, answer in {"absent": NotPerformed("no"), "boom": Boom("no"), "bad": float("nan")}.items():
        append(j, name)
        settled = j.recover(
            j.head() - 1,
            intents=lambda _, name=name, answer=answer: [  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                effect((name, 1), Stub(answer)),
                effect((name, 2), unused()),
            ],
            **options,
        )

        assert settled.stopped is not None
        assert j.record((name, 2)) is None


def test_uncertain_by_a_persons_word_during_the_run_starts_nothing_later(j: Journal) -> None:
    """A person calls the running effect uncertain, and the walk is to stop at such: the next one is not started."""
    append(j, "a", "b")

    def run() -> str:
        record = j.record("first")
        assert record is not None
        Call(lambda: j.resolve("first", Uncertain(), expected_position=record.position, reason="r")).result()
        return "late"

    never = unused()
    settled = j.recover(
        0, intents=by_operation(a=[effect("first", run)], b=[effect("second", never)]), on_uncertain="stop"
    )

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key) == (0, "uncertain", "first")
    assert never.count == 0
    assert j.record("second") is None


def test_effect_settled_by_somebody_else_during_the_run_is_reused(j: Journal) -> None:
    """What was decided about the next effect is checked again when its intent would be committed."""
    append(j, "a", "b")
    never = unused()

    def run() -> str:
        Call(lambda: accept(j, "second", "theirs")).result()
        return "mine"

    settled = j.recover(0, intents=by_operation(a=[effect("first", run)], b=[effect("second", never)]))

    assert (settled, counts(settled)) == (2, (1, 1, 0, 0, 0))
    assert never.count == 0
    assert phases(j, "second") == ["intent", "accepted"]


def test_effect_begun_by_somebody_else_during_the_run_is_joined(j: Journal) -> None:
    """The same where the other call is still under way: the walk shares its run."""
    append(j, "a", "b")
    gate = Gate("theirs")
    others: list[Call[Any]] = []

    def run() -> str:
        others.append(Call(lambda: j.effect("second", run=gate, reconcile=unused())))
        gate.wait_until_entered()
        return "mine"

    walk = Call(lambda: j.recover(0, intents=by_operation(a=[effect("first", run)], b=[effect("second", unused())])))
    gate.wait_until_entered()
    walk.wait_until_it_waits()
    gate.open()

    assert others[0].result() == Accepted("theirs", "run")
    assert (walk.result(), walk.result().stopped) == (2, None)
    assert gate.count == 1


def test_request_bound_by_somebody_else_during_the_run_is_a_conflict(j: Journal) -> None:
    """A binding that came meanwhile counts as any."""
    append(j, "a", "b")

    def run() -> str:
        Call(lambda: accept(j, "second", request="theirs")).result()
        return "mine"

    settled = j.recover(
        0, intents=by_operation(a=[effect("first", run)], b=[effect("second", unused(), request="mine")])
    )

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key) == (1, "conflict", "second")


def test_walks_beside_each_other_run_each_effect_once(j: Journal) -> None:
    """Four walks over the same operations at once: each effect runs once, and each walk settles everything."""
    append(j, *range(15))
    runs = {n: Stub(n) for n in range(15)}
    calls = [
        Call(lambda: j.recover(0, intents=lambda c: [Intent(("k", c.operation), runs[c.operation], unused())]))
        for _ in range(4)
    ]
    results = [call.result() for call in calls]

    assert [(settled, settled.stopped) for settled in results] == [(15, None)] * 4
    assert [run.count for run in runs.values()] == [1] * 15


def test_walk_writes_an_intent_and_an_outcome_for_each_effect(j: Journal) -> None:
    """However commits are shared, the log has both records of each effect, in order, without a gap."""
    append(j, "a", "b", "c")

    j.recover(0, intents=lambda c: [effect((c.operation, n)) for n in (1, 2)])

    keys = [(name, n) for name in "abc" for n in (1, 2)]
    positions = [[e.position for e in j.history(key)] for key in keys]
    assert positions == [[4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]


@pytest.mark.parametrize("reconcile", [None, Stub()], ids=["run_effect", "effect"])
@pytest.mark.parametrize("per_operation", [1, 3])
def test_outcome_and_next_intent_share_a_commit(j: Journal, reconcile: Any, per_operation: int) -> None:
    """n effects that were never started take n + 1 commits, within an operation as from one to the next."""
    append(j, *range(6))
    before = j.stats().commits

    settled = j.recover(
        0,
        intents=lambda c: [Intent((c.operation, n), Stub(n), reconcile) for n in range(per_operation)],
    )

    assert settled.ran == 6 * per_operation
    assert j.stats().commits - before == 6 * per_operation + 1


# Over the life of a process


def test_walk_after_a_killed_process_settles_what_it_left(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """An effect whose process died inside the run is reconciled, and the rest runs."""
    append(j, "a", "b")
    peer = start_peer("call", key=["k", "a"], run=["deliver", "running", "listen"])
    peer.hear("opened")
    peer.hear("running")
    peer.kill()
    run = Stub("m-2")

    settled = j.recover(0, intents=one_each(run, Stub("m-1")))

    assert (settled, counts(settled)) == (2, (1, 0, 1, 0, 0))
    assert run.count == 1
    assert phases(j, ("k", "a")) == ["intent", "accepted"]


def test_walk_over_settled_operations_writes_nothing(open_journal: Callable[..., Journal]) -> None:
    """A start after a clean end asks nobody and leaves the log as it was."""
    j = open_journal()
    append(j, *range(50))
    j.recover(0, intents=one_each(Stub(1), unused()))
    head = j.head()
    j.close()
    again = open_journal()

    settled = again.recover(0, intents=one_each(unused(), unused()))

    assert (settled, counts(settled), again.head()) == (50, (0, 50, 0, 0, 0), head)


def test_store_errors_raise(j: Journal) -> None:
    """What is wrong with the journal and not with an effect is raised, not told as a stop."""
    append(j, "a")
    j.close()

    with pytest.raises(JournalError):
        j.recover(0, intents=one_each(Stub(1)))


def test_generator_is_not_resumed_before_what_it_gave_has_run(j: Journal) -> None:
    """Its functions close over its loop's variable: each key gets the run that was meant for it."""
    j.append("mails", ["ann", "bob"], op_id="1")
    sent: list[str] = []

    def send(who: str) -> str:
        sent.append(who)
        return f"msg-{who}"

    def intents(committed: Committed) -> Iterable[Intent]:
        for who in committed.operation:
            yield Intent(("mail", who), run=lambda: send(who), reconcile=lambda signal: None)  # noqa: B023 - the point

    j.recover(intents=intents)

    assert sent == ["ann", "bob"]
    records = [j.record(("mail", who)) for who in ("ann", "bob")]
    assert [record.proof for record in records if record is not None] == ["msg-ann", "msg-bob"]
