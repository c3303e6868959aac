"""`journal/_core/hooks.py`: calls of an application's pure functions."""

from __future__ import annotations

import contextvars

import pytest

from journal._core import hooks
from journal._core.requests import RunRaisedError


def test_hook_gets_its_arguments_and_gives_its_answer() -> None:
    """Nothing is added to them."""
    assert hooks.call(lambda *given: given, 1, "a") == (1, "a")


def test_calls_are_refused_inside_a_hook_and_nowhere_else() -> None:
    """Also where it was left by an exception."""
    hooks.refuse_calls()
    with pytest.raises(RuntimeError, match="may not call a journal"):
        hooks.call(hooks.refuse_calls)

    hooks.refuse_calls()


def test_hook_within_a_hook_ends_by_itself() -> None:
    """The outer one is still one."""

    def outer() -> None:
        hooks.call(lambda: None)
        hooks.refuse_calls()

    with pytest.raises(RuntimeError):
        hooks.call(outer)


def test_context_that_outlives_its_hook_is_free() -> None:
    """What a hook leaves behind for later may call a journal."""
    context = hooks.call(contextvars.copy_context)

    context.run(hooks.refuse_calls)


@pytest.mark.parametrize("error", [ValueError(), StopIteration()])
def test_exception_of_a_guarded_decision_passes(error: Exception) -> None:
    """It is a refusal already."""

    def decide() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        hooks.guarded(decide)

    assert caught.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_else_a_guarded_decision_raises_is_carried_to_its_caller(error: BaseException) -> None:
    """As a refusal, so that it ends no commit."""

    def decide() -> None:
        raise error

    with pytest.raises(RunRaisedError) as caught:
        hooks.guarded(decide)

    assert caught.value.error is error
    assert hooks.guarded(lambda: 3) == 3


def test_guarded_decision_may_not_call_a_journal_anywhere() -> None:
    """Not between its hooks either, where an application's types are decoded."""
    with pytest.raises(RuntimeError, match="may not call a journal"):
        hooks.guarded(hooks.refuse_calls)
