"""`recovery/walker.py`: the walk as a pure generator, its questions answered from scripted facts."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from recovery import Ending, Fact, Fetch, Intent, Look, Operation, Pass, Report, Settle, Settled, Stop, walk
from recovery.walker import LOOK_AHEAD_MAX, Consult, HaltedError, Policy, check_policies
from tests.unit.support import Boom, raising, unused


def intent(key: str) -> Intent:
    """An intent that nobody runs: the script says what becomes of it."""
    return Intent(key, unused)


class Script:
    """Answers a walk's questions: operations at positions 10, 20, …, what is on record, what becomes of an effect.

    `trail` tells the order of everything that the walk asked for.
    """

    def __init__(
        self,
        *implied: Iterable[str],
        facts: dict[str, str] | None = None,
        errors: dict[str, Exception] | None = None,
        endings: dict[str, Ending | Exception] | None = None,
        reports: dict[int, Exception] | None = None,
    ) -> None:
        self.implied = list(implied)
        self.facts = facts or {}
        self.errors = errors or {}
        self.endings = endings or {}
        self.reports = reports or {}
        self.trail: list[str] = []
        self._fetched = 0

    def walk(
        self,
        *,
        intents: Callable[[Any], Any] | None = None,
        on_unresolved: Policy = "retry",
        on_uncertain: Policy = "accept",
        limit: int | None = None,
    ) -> Settled:
        """What the whole walk came to."""
        walker = walk(
            5,
            intents=intents or (lambda committed: [intent(key) for key in committed]),
            on_unresolved=on_unresolved,
            on_uncertain=on_uncertain,
            limit=limit,
        )
        try:
            question = next(walker)
            while True:
                try:
                    answer = self._answer(question)
                except Exception as error:
                    question = walker.throw(error)
                else:
                    question = walker.send(answer)
        except StopIteration as end:
            settled: Settled = end.value
            return settled

    def _answer(self, question: Any) -> Any:
        match question:
            case Fetch():
                return self._fetch()
            case Consult():
                names = [str(argument.key) for argument in question.arguments if isinstance(argument, Intent)]
                self.trail.append(" ".join(["consult", *names]))
                return question.function(*question.arguments)
            case Look():
                key = str(question.intent.key)
                self.trail.append(f"look {key}")
                phase = self.facts.get(key, "none")
                record = None if phase in {"none", "broken"} else f"record of {key}"
                return Fact(phase, record, key, self.errors.get(key))
            case Settle():
                following = "" if question.following is None else f" then {question.following.call}"
                self.trail.append(f"settle {question.fact.call}{following}")
                ending = self.endings.get(question.fact.call, Ending("ran"))
                if isinstance(ending, Exception):
                    raise ending
                return ending
            case Pass():
                self.trail.append(f"pass {question.fact.call}")
                return None
            case Report():
                self.trail.append(f"report {question.cursor}{' last' if question.is_last else ''}")
                if question.cursor in self.reports and not question.is_last:
                    raise self.reports[question.cursor]
                return None
            case _:
                raise AssertionError(question)

    def _fetch(self) -> Operation | None:
        if self._fetched == len(self.implied):
            self.trail.append("fetch nothing")
            return None
        implied = self.implied[self._fetched]
        self._fetched += 1
        position = 10 * self._fetched
        self.trail.append(f"fetch {position}")
        return Operation(position, "s", f"op-{position}", implied)


def counts(settled: Settled) -> dict[str, int]:
    """The counts that are not zero."""
    names = ("ran", "reused", "reconciled", "uncertain", "passed")
    return {name: getattr(settled, name) for name in names if getattr(settled, name)}


# Order


def test_nothing_to_walk_settles_where_it_began() -> None:
    """With no operation past the cursor, the cursor comes back, reported once as the last."""
    script = Script()

    settled = script.walk()

    assert (int(settled), settled.stopped, counts(settled)) == (5, None, {})
    assert script.trail == ["fetch nothing", "report 5 last"]


def test_operation_without_intents_settles() -> None:
    """An operation that implies nothing is passed over, and its position is reached."""
    script = Script([])

    assert script.walk() == 10
    assert script.trail == ["fetch 10", "consult", "report 10", "fetch nothing", "report 10 last"]


def test_effects_are_settled_one_after_the_other() -> None:
    """Each effect is looked at once and settled in order, with the next one known before it is settled."""
    script = Script(["a", "b"], ["c"])

    settled = script.walk()

    assert (int(settled), counts(settled)) == (20, {"ran": 3})
    assert script.trail == [
        "fetch 10",
        "consult",
        "look a",
        "look b",
        "settle a then b",
        "fetch 20",
        "consult",
        "look c",
        "settle b then c",
        "report 10",
        "fetch nothing",
        "settle c",
        "report 20",
        "report 20 last",
    ]


def test_key_twice_in_an_operation_runs_once() -> None:
    """Within one operation a key stands for one effect, whatever `intents` repeats."""
    script = Script(["a", "b", "a", "b"])

    settled = script.walk()

    assert counts(settled) == {"ran": 2}
    assert [step for step in script.trail if step.startswith("settle")] == ["settle a then b", "settle b"]


def test_key_of_two_operations_is_looked_at_for_each() -> None:
    """The same key in the next operation is asked about anew, and never shares a commit with itself."""
    script = Script(["a"], ["a"])

    settled = script.walk()

    assert counts(settled) == {"ran": 2}
    assert [step for step in script.trail if step.startswith("settle")] == ["settle a", "settle a"]


# Verdicts


@pytest.mark.parametrize(
    "how, count",
    [("ran", "ran"), ("reused", "reused"), ("reconciled", "reconciled"), ("uncertain", "uncertain")],
)
def test_each_ending_is_counted(how: str, count: str) -> None:
    """What became of an effect is counted under its own name, and the walk goes on."""
    script = Script(["a"], ["b"], endings={"a": Ending(how, record="record")})

    settled = script.walk()

    assert settled == 20
    assert counts(settled) == {count: 1, "ran": 1 + (how == "ran")}


@pytest.mark.parametrize("reason", ["failed", "unresolved", "in_flight", "conflict", "corrupt"])
def test_effect_that_does_not_settle_stops_the_walk(reason: str) -> None:
    """The walk ends before the operation with its reason and error; what settled inside it stays counted."""
    error = Boom("no")
    script = Script(["a"], ["b", "c", "d"], ["e"], endings={"c": Ending(reason, error)})

    settled = script.walk()

    assert settled == 10
    assert settled.stopped == Stop(20, "s", "op-20", "c", reason, error)
    assert counts(settled) == {"ran": 2}
    assert [step for step in script.trail if step.startswith("settle")] == [
        "settle a then b",
        "settle b then c",
        "settle c then d",
    ]
    assert script.trail[-1] == "report 10 last"


@pytest.mark.parametrize("answer, cursor", [("accept", 10), ("stop", 5)])
@pytest.mark.parametrize("phase", ["uncertain", "intent"])
def test_uncertain_effect_without_a_result_is_decided_about(answer: str, cursor: int, phase: str) -> None:
    """A `run_effect` that a person resolved so: a stop tells what the direct call would have raised."""
    error = Boom("no result")
    script = Script(
        ["a"], facts={"a": phase}, errors={"a": error}, endings={"a": Ending("uncertain", error, "its record")}
    )

    settled = script.walk(on_uncertain=answer)

    assert settled == cursor
    assert settled.stopped == (None if answer == "accept" else Stop(10, "s", "op-10", "a", "uncertain", error))
    assert counts(settled) == {"uncertain": 1}


def test_accepted_effect_is_reused() -> None:
    """Nobody is asked about it: neither a policy nor the recipient."""
    script = Script(["a"], facts={"a": "accepted"})

    settled = script.walk(on_unresolved=unused, on_uncertain=unused)

    assert (int(settled), counts(settled)) == (10, {"reused": 1})
    assert not any(step.startswith("settle") for step in script.trail)


@pytest.mark.parametrize("phase", ["none", "intent", "failed", "broken"])
@pytest.mark.parametrize("is_callable", [False, True])
def test_unresolved_effect_is_settled_skipped_or_passed(phase: str, *, is_callable: bool) -> None:
    """`on_unresolved` decides about every effect that is not settled, whether it is a word or a function."""

    def policy(word: str) -> Policy:
        return (lambda intent, record: word) if is_callable else word

    retried = Script(["a"], ["b"], facts={"a": phase})
    skipped = Script(["a"], ["b"], facts={"a": phase})
    passed = Script(["a"], ["b"], facts={"a": phase, "b": "accepted"})

    assert counts(retried.walk(on_unresolved=policy("retry"))) == {"ran": 2}
    stopped = skipped.walk(on_unresolved=policy("skip"))
    assert (int(stopped), stopped.stopped) == (5, Stop(10, "s", "op-10", "a", "skipped"))
    assert not any(step.startswith(("settle", "fetch 20")) for step in skipped.trail)
    settled = passed.walk(on_unresolved=policy("pass"))
    assert (int(settled), counts(settled)) == (20, {"passed": 1, "reused": 1})
    assert "pass a" in passed.trail


def test_uncertain_effect_is_accepted_or_stops() -> None:
    """`on_uncertain` decides whether the walk lives with what nobody will ever know."""
    accepted = Script(["a"], facts={"a": "uncertain"})
    stopped = Script(["a"], facts={"a": "uncertain"})

    settled = accepted.walk(on_unresolved=unused)
    assert (int(settled), counts(settled)) == (10, {"uncertain": 1})
    settled = stopped.walk(on_uncertain=lambda intent, record: "stop")
    assert (int(settled), settled.stopped) == (5, Stop(10, "s", "op-10", "a", "uncertain"))
    assert counts(settled) == {"uncertain": 1}


@pytest.mark.parametrize(
    "policy, cursor", [("accept", 10), ("stop", 5), (lambda intent, record: "accept", 10), (lambda *_: "stop", 5)]
)
def test_effect_that_becomes_uncertain_is_decided_about(policy: Policy, cursor: int) -> None:
    """`on_uncertain` holds for what turned out so in this walk, too."""
    script = Script(["a"], facts={"a": "intent"}, endings={"a": Ending("uncertain", record="its record")})

    settled = script.walk(on_uncertain=policy)

    assert settled == cursor
    assert settled.stopped == (None if cursor == 10 else Stop(10, "s", "op-10", "a", "uncertain"))
    assert counts(settled) == {"uncertain": 1}


def test_policies_are_given_the_intent_and_its_record() -> None:
    """A policy decides on what is on record: the record itself, or `None` where there is none that can be read."""
    seen: list[tuple[Any, Any]] = []

    def policy(intent: Intent, record: Any) -> str:
        seen.append((intent.key, record))
        return "pass" if intent.key != "u" else "accept"

    script = Script(["n", "i", "f", "b", "u"], facts={"i": "intent", "f": "failed", "b": "broken", "u": "uncertain"})
    script.walk(on_unresolved=policy, on_uncertain=policy)

    assert seen == [("n", None), ("i", "record of i"), ("f", "record of f"), ("b", None), ("u", "record of u")]


def test_policy_about_what_became_uncertain_sees_the_new_record() -> None:
    """The record that it is given is the one after the walk's own question."""
    seen: list[Any] = []
    script = Script(["a"], endings={"a": Ending("uncertain", record="the new one")})

    def policy(intent: Intent, record: Any) -> str:
        seen.append((intent.key, record))
        return "accept"

    script.walk(on_uncertain=policy)

    assert seen == [("a", "the new one")]


# Looking ahead


@pytest.mark.parametrize("phase, shares", [("none", True), ("failed", True), ("intent", False), ("broken", False)])
def test_next_effect_shares_the_commit_where_its_attempt_begins(phase: str, *, shares: bool) -> None:
    """Only an effect that begins with an intent of its own can have that intent in the commit before."""
    script = Script(["a", "b"], facts={"b": phase})

    script.walk()

    assert ("settle a then b" if shares else "settle a") in script.trail


@pytest.mark.parametrize("phase, verdict", [("accepted", "retry"), ("uncertain", "retry"), ("none", "pass")])
def test_effect_that_is_not_to_be_run_is_not_begun(phase: str, verdict: str) -> None:
    """What is reused, accepted as uncertain or passed over is not begun with the effect before."""
    script = Script(["a", "b"], facts={"b": phase})

    script.walk(on_unresolved=lambda intent, record: "retry" if intent.key == "a" else verdict)

    assert "settle a" in script.trail


def test_look_ahead_reaches_over_operations_without_effects() -> None:
    """The next effect may belong to a later operation; those between are kept and reported in their order."""
    script = Script(["a"], [], [], ["b"])

    settled = script.walk()

    assert settled == 40
    assert "settle a then b" in script.trail
    assert [step for step in script.trail if step.startswith("report")] == [
        "report 10",
        "report 20",
        "report 30",
        "report 40",
        "report 40 last",
    ]


@pytest.mark.parametrize("between, shares", [(LOOK_AHEAD_MAX - 2, True), (LOOK_AHEAD_MAX - 1, False)])
def test_look_ahead_gives_up(between: int, *, shares: bool) -> None:
    """So many operations without effects are passed and no more: what is kept in memory is bounded."""
    script = Script(["a"], *([] for _ in range(between)), ["b"])

    settled = script.walk()

    assert settled == 10 * (between + 2)
    assert ("settle a then b" if shares else "settle a") in script.trail


def test_iterator_is_resumed_only_after_what_it_gave_is_settled() -> None:
    """Its functions may close over what its next step changes, so it shares no commit."""
    script = Script(["a", "b"], ["c"])

    settled = script.walk(intents=lambda committed: (intent(key) for key in committed))

    assert (int(settled), counts(settled)) == (20, {"ran": 3})
    assert [step for step in script.trail if step != "consult"] == [
        *("fetch 10", "look a", "settle a", "look b", "settle b", "report 10"),
        *("fetch 20", "look c", "settle c", "report 20"),
        *("fetch nothing", "report 20 last"),
    ]


def test_iterator_of_the_next_operation_is_not_resumed_ahead() -> None:
    """It is opened ahead, behind a list, and gives its first effect only after that list's last."""
    script = Script(["a"], ["b"])

    script.walk(intents=lambda committed: [intent("a")] if committed == ["a"] else iter([intent("b")]))

    assert [step for step in script.trail if step != "consult"] == [
        *("fetch 10", "look a", "fetch 20", "settle a", "report 10"),
        *("look b", "settle b", "report 20", "fetch nothing", "report 20 last"),
    ]


@pytest.mark.parametrize("kind", [list, tuple])
def test_list_and_tuple_are_looked_ahead_into(kind: type[Any]) -> None:
    """What is there already can be looked at."""
    script = Script(["a", "b"])

    script.walk(intents=lambda committed: kind(intent(key) for key in committed))

    assert "settle a then b" in script.trail


@pytest.mark.parametrize("kind", [iter, lambda found: {item.key: item for item in found}.values()])
def test_other_iterables_are_walked(kind: Callable[[Any], Any]) -> None:
    """`intents` may give any iterable."""
    script = Script(["a", "b"])

    settled = script.walk(intents=lambda committed: kind([intent(key) for key in committed]))

    assert (int(settled), counts(settled)) == (10, {"ran": 2})


class World(Script):
    """A script whose effects leave a mark, by which generators go on."""

    def __init__(self, *implied: Iterable[str], **options: Any) -> None:
        super().__init__(*implied, **options)
        self.done: list[str] = []
        self.asked: list[str] = []

    def _answer(self, question: Any) -> Any:
        answer = super()._answer(question)
        if isinstance(question, Settle):
            self.done.append(question.fact.call)
        return answer

    def intents(self, committed: Any) -> Iterable[Intent]:
        """The first key at once, each next one only where the one before is done."""
        self.asked.append(committed[0])
        yield intent(committed[0])
        for before, key in itertools.pairwise(committed):
            if before in self.done:
                yield intent(key)


def test_effect_that_an_iterator_gives_only_later_is_settled_in_its_place() -> None:
    """What it goes on with after the effects before belongs to its operation, and comes before the next one's."""
    script = World(["a", "b", "c"], ["d"])

    settled = script.walk(intents=script.intents)

    assert (int(settled), counts(settled)) == (20, {"ran": 4})
    assert script.done == ["a", "b", "c", "d"]
    assert [step for step in script.trail if step.startswith("report")] == ["report 10", "report 20", "report 20 last"]


@pytest.mark.parametrize("reason", ["failed", "unresolved"])
def test_effect_that_an_iterator_gives_only_later_may_stop_the_walk(reason: str) -> None:
    """Before its operation: nothing of the next one is run."""
    script = World(["a", "b"], ["c"], endings={"b": Ending(reason)})

    settled = script.walk(intents=script.intents)

    assert settled == 5
    assert settled.stopped == Stop(10, "s", "op-10", "b", reason)
    assert script.done == ["a", "b"]


def test_key_that_an_iterator_gives_again_runs_once() -> None:
    """However often it is asked."""
    script = World(["a", "b", "a", "b"])

    script.walk(intents=script.intents)

    assert script.done == ["a", "b"]


def test_exception_ahead_of_time_counts_only_when_it_comes_again() -> None:
    """A function that cannot tell what an operation implies before an effect is done is asked again after it."""
    script = World(["a"], ["b"], ["c"], ["d"])

    def intents(committed: Any) -> list[Intent]:
        if committed == ["b"] and "a" not in script.done:
            raise Boom
        return [intent(committed[0])]

    settled = script.walk(intents=intents, limit=3)

    assert (int(settled), script.done) == (30, ["a", "b", "c"])
    assert [step for step in script.trail if step.startswith("fetch")] == ["fetch 10", "fetch 20", "fetch 30"]


class Stubborn:
    """An iterable that does not give its iterator."""

    def __iter__(self) -> Any:
        raise Boom


def test_iterable_that_cannot_be_iterated_waits_for_the_effects_before() -> None:
    """As any function of the user's that raises."""
    script = Script(["a"], ["b"])

    with pytest.raises(Boom):
        script.walk(intents=lambda committed: [intent("a")] if committed == ["a"] else Stubborn())

    assert "settle a" in script.trail


def test_list_is_asked_for_once() -> None:
    """What is there as a whole is believed."""
    asked: list[Any] = []

    def intents(committed: Any) -> list[Intent]:
        asked.append(committed)
        return [intent(key) for key in committed]

    Script(["a"], [], ["b", "c"]).walk(intents=intents)

    assert asked == [["a"], [], ["b", "c"]]


def test_exception_of_intents_where_the_walk_has_come_is_raised_at_once() -> None:
    """Asking again would let a function that fails once imply nothing."""
    answers = iter([Boom()])

    def intents(_: Any) -> list[Intent]:
        for error in answers:
            raise error
        return []

    with pytest.raises(Boom):
        Script([]).walk(intents=intents)


# What the user's functions raise


def test_exception_of_intents_waits_for_the_effects_before() -> None:
    """What `intents` raises for the next operation comes up when the walk gets there: the effect before is settled."""
    script = Script(["a"], ["b"])

    with pytest.raises(Boom):
        script.walk(intents=lambda committed: [intent("a")] if committed == ["a"] else raising(Boom())())

    order = [step for step in script.trail if step != "consult"]
    assert order == ["fetch 10", "look a", "fetch 20", "settle a", "report 10"]


def test_exception_of_a_policy_waits_for_the_effects_before() -> None:
    """As does what a policy raises about the next effect."""
    script = Script(["a", "b"])

    with pytest.raises(Boom):
        script.walk(on_unresolved=lambda intent, record: "retry" if intent.key == "a" else raising(Boom())())

    assert script.trail[-1] == "settle a"


def test_exception_of_a_policy_about_what_became_uncertain_is_raised() -> None:
    """The outcome is on record; the walk goes no further."""
    script = Script(["a"], endings={"a": Ending("uncertain")})

    with pytest.raises(Boom):
        script.walk(on_uncertain=raising(Boom()))

    assert script.trail[-1] == "consult a"


def test_exception_of_an_iterator_comes_after_the_effects_before() -> None:
    """A generator that raises after its first intent does so after that effect is settled."""
    script = Script(["a"])

    def intents(_: Any) -> Iterable[Intent]:
        yield intent("a")
        raise Boom

    with pytest.raises(Boom):
        script.walk(intents=intents)

    assert [step for step in script.trail if step != "consult"] == ["fetch 10", "look a", "settle a"]


def test_exception_of_a_settle_or_report_is_raised_at_once() -> None:
    """What is no effect's own failure (the store's errors, a `progress` that raises) ends the walk."""
    with pytest.raises(Boom):
        Script(["a"], endings={"a": Boom("the store")}).walk()
    with pytest.raises(Boom):
        Script([], reports={10: Boom("progress")}).walk()


@pytest.mark.parametrize("implied", [None, 5, intent("a")])
def test_intents_must_give_an_iterable(implied: Any) -> None:
    """A function that forgot its brackets or its return is told so; what came before is settled."""
    script = Script(["a"], ["b"])

    with pytest.raises(TypeError, match="intents must give an iterable of Intent, not "):
        script.walk(intents=lambda committed: [intent("a")] if committed == ["a"] else implied)

    assert "settle a" in script.trail


@pytest.mark.parametrize("item", [None, "a", ("a", unused)])
@pytest.mark.parametrize("kind", [list, iter])
def test_intents_must_give_intents(item: Any, kind: Callable[[Any], Any]) -> None:
    """Another value than an `Intent` is refused with its type; what came before is settled."""
    script = Script([])

    with pytest.raises(TypeError, match=f"intents must give Intent values, not {type(item).__name__}"):
        script.walk(intents=lambda _: kind([intent("a"), item]))

    assert "settle a" in script.trail


@pytest.mark.parametrize("answer", ["accept", "", None, True, 1, ["retry"]])
def test_unresolved_policy_must_answer_one_of_its_words(answer: Any) -> None:
    """Another answer is refused, and the effect that it is about is not touched."""
    script = Script(["a"])

    with pytest.raises(ValueError, match=r"the policy for 'a' must answer retry, skip, pass, not "):
        script.walk(on_unresolved=lambda intent, record: answer)

    assert script.trail[-1] == "consult a"


@pytest.mark.parametrize("answer", ["retry", "", None, False])
@pytest.mark.parametrize("phase", ["uncertain", "intent"])
def test_uncertain_policy_must_answer_one_of_its_words(answer: Any, phase: str) -> None:
    """Another answer is refused, about what was uncertain before as about what becomes so."""
    script = Script(["a"], facts={"a": phase}, endings={"a": Ending("uncertain")})

    with pytest.raises(ValueError, match=r"the policy for 'a' must answer accept, stop, not "):
        script.walk(on_uncertain=lambda intent, record: answer)


@pytest.mark.parametrize("taken", range(8))
def test_closed_walk_asks_nothing_more(taken: int) -> None:
    """Whoever drives it may give up at any question."""
    both = [intent("a"), intent("b")]
    walker = walk(0, intents=lambda _: both, on_unresolved="retry", on_uncertain="accept", limit=1)
    answers: dict[type[Any], Any] = {
        Fetch: Operation(1, "s", "1", None),
        Consult: both,
        Look: Fact("none"),
        Settle: Ending("ran"),
        Report: None,
    }
    question = next(walker)
    for _ in range(taken):
        question = walker.send(answers[type(question)])

    walker.close()

    assert inspect.getgeneratorstate(walker) == inspect.GEN_CLOSED


# Halting


class Halting(Script):
    """A script that halts the walk at one of its questions, and at every one after it."""

    def __init__(self, *implied: Iterable[str], at: int, **options: Any) -> None:
        super().__init__(*implied, **options)
        self.left = at
        self.settled: list[str] = []

    def _answer(self, question: Any) -> Any:
        if not isinstance(question, Report):
            self.left -= 1
            if self.left < 0:
                raise HaltedError
        answer = super()._answer(question)
        if isinstance(question, Settle):
            self.settled.append(question.fact.call)
        return answer


@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("at", range(14))
def test_halted_walk_says_what_it_did(at: int, kind: Callable[[Any], Any]) -> None:
    """It ends where it is told, at whatever question: no stop, the counts so far, the prefix that was settled."""
    script = Halting(["a", "b"], [], ["c"], at=at)

    settled = script.walk(intents=lambda committed: kind([intent(key) for key in committed]))

    assert settled.stopped is None
    assert counts(settled) == ({"ran": len(script.settled)} if script.settled else {})
    reports = [int(step.split()[1]) for step in script.trail if step.startswith("report")]
    assert settled == reports[-1]
    assert (settled >= 10) <= (script.settled[:2] == ["a", "b"])
    assert (settled == 30) <= (script.settled == ["a", "b", "c"])
    assert script.trail[-1] == f"report {int(settled)} last"


def test_halted_walk_does_not_ask_what_to_do_with_what_became_uncertain() -> None:
    """It is counted, and is no stop: the walk that is not halted will decide."""
    script = Halting(["a"], at=4, endings={"a": Ending("uncertain", record="record")})

    settled = script.walk(on_uncertain=unused, limit=1)

    assert (int(settled), settled.stopped, counts(settled)) == (5, None, {"uncertain": 1})


# Limits


@pytest.mark.parametrize("limit, cursor", [(1, 10), (2, 20), (3, 30), (4, 30), (None, 30)])
def test_limit_ends_the_walk_after_so_many_operations(limit: int | None, cursor: int) -> None:
    """`limit` counts operations, with effects and without, and none beyond it is fetched."""
    script = Script(["a"], [], ["b", "c"])

    settled = script.walk(limit=limit)

    assert (int(settled), settled.stopped) == (cursor, None)
    assert f"fetch {cursor + 10}" not in script.trail


def test_limit_does_not_count_a_stopped_operation_as_settled() -> None:
    """A stop within the limit stops."""
    script = Script(["a"], ["b"], endings={"a": Ending("failed")})

    assert script.walk(limit=1) == 5


# The arguments


@pytest.mark.parametrize("policy", ["retry", "skip", "pass", lambda intent, record: "retry"])
def test_unresolved_policies_are_known(policy: Policy) -> None:
    """Each word of the contract, and any function."""
    check_policies(policy, "accept")


@pytest.mark.parametrize("policy", ["accept", "stop", lambda intent, record: "accept"])
def test_uncertain_policies_are_known(policy: Policy) -> None:
    """Each word of the contract, and any function."""
    check_policies("retry", policy)


@pytest.mark.parametrize("policy", ["accept", "", "Retry"])
def test_unknown_word_is_refused_before_anything_starts(policy: str) -> None:
    """A misspelled policy is a `ValueError` that lists the words."""
    with pytest.raises(ValueError, match=r"on_unresolved must be one of retry, skip, pass or a callable, not "):
        check_policies(policy, "accept")
    with pytest.raises(ValueError, match=r"on_uncertain must be one of accept, stop or a callable, not 'pass'"):
        check_policies("retry", "pass")


@pytest.mark.parametrize("policy", [None, 1, ["retry"]])
def test_policy_of_another_type_is_refused(policy: Any) -> None:
    """What is neither a word nor a function is a `TypeError`."""
    with pytest.raises(TypeError, match=f"on_unresolved must be a str or a callable, not {type(policy).__name__}"):
        check_policies(policy, "accept")
    with pytest.raises(TypeError, match="on_uncertain must be a str or a callable"):
        check_policies("retry", policy)
