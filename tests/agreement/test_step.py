"""`step`: a computation, recorded after its body."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import Accepted, EffectInFlightError, Journal, NotPerformed

from .support import Boom, FileRecipient, Gate, Peer, Stub, accept, at_once, unused


def test_body_runs_once_and_its_result_is_recorded(j: Journal) -> None:
    """The first call runs the body, which takes nothing; the second is answered from the record."""
    body = Stub({"n": 1})

    assert j.step("k", body) == {"n": 1}
    assert j.step("k", unused()) == {"n": 1}
    assert body.calls == [()]


def test_step_is_one_record(j: Journal) -> None:
    """A step writes once, after its body; answering it writes nothing."""
    heads: list[int] = []

    j.step("k", lambda: heads.append(j.head()))
    heads.append(j.head())
    j.step("k", unused())
    heads.append(j.head())

    assert heads == [0, 1, 1]


@pytest.mark.parametrize("error", [Boom("boom"), NotPerformed("no"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_body_that_raises_records_nothing(j: Journal, error: BaseException) -> None:
    """The exception goes on as it is, and the next call runs the body again."""
    with pytest.raises(type(error)) as caught:
        j.step("k", Stub(error))

    assert caught.value is error
    assert j.head() == 0
    assert j.step("k", lambda: "done") == "done"


@pytest.mark.parametrize(
    "result",
    [float("nan"), (1, 2), {1}, {1: 2}, object(), "x" * (16 * 1024 * 1024 + 1), "\udcff"],
    ids=["nan", "tuple", "set", "int key", "object", "too large", "surrogate"],
)
def test_result_that_cannot_be_kept_is_a_type_error(j: Journal, result: Any) -> None:
    """Nothing is recorded, and the next call runs the body again."""
    with pytest.raises(TypeError):
        j.step("k", lambda: result)

    assert j.head() == 0
    assert j.step("k", lambda: "done") == "done"


def test_type_error_names_the_path(j: Journal) -> None:
    """The message has the path of what would not come back, and what to do."""
    with pytest.raises(TypeError, match=r"amounts(.|\n)*returns="):
        j.step("k", lambda: {"fine": 1, "amounts": [1, (2, 3)]})


def test_none_is_a_result(j: Journal) -> None:
    """A step whose body returned None has run."""
    assert j.step("k", lambda: None) is None
    assert j.step("k", unused()) is None


def test_steps_survive_reopening(open_journal: Callable[..., Journal]) -> None:
    """A recorded step is answered by the next handle."""
    j = open_journal()
    j.step(("a", 1), lambda: [1, 2])
    j.close()

    assert open_journal().step(("a", 1), unused()) == [1, 2]


def test_steps_have_a_key_space_of_their_own(j: Journal) -> None:
    """A step and an effect of one key know nothing of each other."""
    j.step("k", lambda: "step")

    assert j.record("k") is None
    assert list(j.effects()) == []
    assert accept(j, "k", "effect") == Accepted("effect", "run")
    assert j.step("k", unused()) == "step"


def test_effect_may_run_inside_the_step_of_its_key(j: Journal) -> None:
    """The key spaces are apart, so this is no re-entry."""
    assert j.step("k", lambda: accept(j, "k", "inside").proof) == "inside"
    assert j.effect("e", run=lambda: j.step("e", lambda: 1), reconcile=unused()) == Accepted(1, "run")


def test_steps_nest(j: Journal) -> None:
    """Another step may run inside a body."""
    assert j.step("outer", lambda: [j.step("inner", lambda: 1), 2]) == [1, 2]
    assert j.step("inner", unused()) == 1


def test_step_inside_its_own_body_is_refused(j: Journal) -> None:
    """A call for a key from inside its own body raises `EffectInFlightError` instead of deadlocking."""
    with pytest.raises(EffectInFlightError):
        j.step("k", lambda: j.step("k", unused()))

    assert j.head() == 0


def test_concurrent_calls_share_one_body(j: Journal) -> None:
    """Eight threads at a barrier: the body runs once, and each gets its own copy of the result."""
    body = Gate(lambda: {"list": [1]})
    calls = at_once(8, lambda: j.step("k", body))
    body.wait_until_entered()
    body.open()
    results = [call.result() for call in calls]

    assert body.count == 1
    assert results == [{"list": [1]}] * 8
    results[0]["list"].append(2)
    assert results[1:] == [{"list": [1]}] * 7


def test_large_result_is_kept(j: Journal) -> None:
    """The result of a step may have 16 MiB."""
    large = "x" * (16 * 1024 * 1024 - 1024)

    assert j.step("k", lambda: large) == large
    assert j.step("k", unused()) == large


def test_first_recorded_result_wins(j: Journal, start_peer: Callable[..., Peer], recipient: FileRecipient) -> None:
    """Where another process recorded the step meanwhile, every call returns what is on record."""
    peer = start_peer("call", method="step", key="k", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")
    mine = j.step("k", lambda: "mine")
    peer.tell("return")
    theirs = peer.hear("accepted")["proof"]

    assert mine == theirs == j.step("k", unused()) == "mine"
    assert j.head() == 1
    peer.finish()
