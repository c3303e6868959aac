"""What an application says of its operations at `open`: their type, who may append which, and what state they come to.

Every function here is pure: called again, with the same arguments, it answers the same. Each call gets values of its
own, decoded from what is kept, so that a function which changes what it was given changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from journal._core import hooks
from journal._core.payloads import ValueRejectedError, check_type, decode_value, keep_state
from journal._core.schemas import Schema
from journal._core.texts import error_text
from journal.errors import InvalidOperationError, OperationRefusedError
from journal.options import VALUE_BYTES_MAX

if TYPE_CHECKING:
    from journal._core.states import StateAt


class Reducer(msgspec.Struct, frozen=True):
    """How the operations of a stream come to its state: `initial()` gives the first, `apply(state, operation)` the next.

    Both are plain functions of their arguments alone, and call no journal. What they return is kept as JSON, at most 16
    MiB, and read back as `type` before anybody gets it. A snapshot is written with every `snapshot_every`-th operation or
    so, in the same commit. Another `version` says that the function or the type has changed: snapshots of other versions
    are not used, and the state is rebuilt from the log.

    Raises:
        TypeError: a function cannot be called, nothing can be decoded into `type`, or a number is no int.
        ValueError: `snapshot_every` is below 1, or `version` below 0.
    """

    initial: Callable[[], Any]
    apply: Callable[[Any, Any], Any]
    type: Any
    snapshot_every: int = 100
    version: int = 1

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        for name in ("initial", "apply"):
            _check_function(getattr(self, name), f"Reducer: {name}")
        check_type(self.kind, "Reducer: type")
        for name, least in (("snapshot_every", 1), ("version", 0)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"Reducer: {name} must be an int, not {number!r}")
            if not least <= number < 1 << 63:
                raise ValueError(f"Reducer: {name} must be {least} or more and fit into 63 bits, not {number}")

    @property
    def kind(self) -> Any:
        """The type to decode a state into; `None` where it is any JSON."""
        return None if self.type is Any else self.type


class StateCache(Protocol):
    """States of streams that were true once; see `journal._states`."""

    def get(self, stream: str) -> StateAt | None:
        """The newest that is kept."""

    def put(self, stream: str, at: StateAt) -> None:
        """Keep it, in the place of an older one."""


class NoStates:
    """Keeps nothing."""

    def get(self, _: str) -> StateAt | None:
        """Nothing."""
        return None

    def put(self, stream: str, at: StateAt) -> None:
        """Nothing."""


class Rules(msgspec.Struct, frozen=True):
    """What was said at `open`, and the states that this handle remembers."""

    schema: Schema = Schema()
    reducer: Reducer | None = None
    validate: Callable[[Any, Any], Any] | None = None
    authorize: Callable[[str, Any, Any], Any] | None = None
    states: StateCache = NoStates()

    @property
    def judges(self) -> bool:
        """Whether an append depends on more than its identity and sequence."""
        return self.reducer is not None or self.validate is not None or self.authorize is not None

    def check(self, place: Place, payload: bytes, actor: str, state: bytes | None) -> None:
        """Ask `validate`, then `authorize`, about an operation on a state.

        Raises:
            InvalidOperationError: `validate` refused it, or one of them raised.
            OperationRefusedError: `authorize` refused it.
            TypeError: `authorize` gave another answer than True, False or a reason.
        """
        if self.validate is not None:
            self._ask(place, "validate", self.validate, self.schema.decode(payload), self._state(state))
        if self.authorize is None:
            return
        answer = self._ask(place, "authorize", self.authorize, actor, self.schema.decode(payload), self._state(state))
        if answer is True:
            return
        if answer is not False and not isinstance(answer, str):
            raise TypeError(f"authorize must give True, or False or the reason of a refusal as a str, not {answer!r}")
        raise OperationRefusedError(place.stream, place.op_id, actor, answer or "authorize says no")

    def begin(self, stream: str) -> bytes:
        """The state before the first operation.

        Raises:
            InvalidOperationError: the reducer's `initial` raised, or its state cannot be kept.
        """
        place = Place(stream, "", None)
        return self._kept(place, self._ask(place, "initial", self._reducer.initial))

    def apply(self, place: Place, state: bytes, operation: Any) -> bytes:
        """The state after an operation.

        Raises:
            InvalidOperationError: the reducer's `apply` raised, or its state cannot be kept.
        """
        return self._kept(place, self._ask(place, "apply", self._reducer.apply, self._state(state), operation))

    @property
    def _reducer(self) -> Reducer:
        assert self.reducer is not None  # noqa: S101 - a bug of ours: nothing comes to a state without one
        return self.reducer

    def _state(self, state: bytes | None) -> Any:
        return None if state is None else decode_value(state, self._reducer.kind)

    def _ask(self, place: Place, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return hooks.call(hook, *arguments)
        except Exception as error:
            raise place.invalid(f"{name} raised {error_text(error)}") from error

    def _kept(self, place: Place, state: Any) -> bytes:
        try:
            return keep_state(state, self._reducer.kind, VALUE_BYTES_MAX)
        except ValueRejectedError as error:
            raise place.invalid(f"the state after it cannot be kept: {error}") from error


class Place(msgspec.Struct, frozen=True):
    """Which operation an error is about; one that is just being appended has no position yet."""

    stream: str
    op_id: str
    position: int | None

    def invalid(self, reason: str) -> InvalidOperationError:
        """The error that says why it is of no use."""
        return InvalidOperationError(self.stream, self.op_id, reason, self.position, self.position is not None)


def _check_function(function: Any, name: str) -> None:
    if not callable(function):
        raise TypeError(f"{name} must be a function, not {type(function).__name__}: {function!r}")


def rules_of(operation: Any, state: Any, validate: Any, authorize: Any, upcast: Any, *, states: StateCache) -> Rules:
    """The rules of a journal that is opened with these.

    Raises:
        TypeError: one of them is of no use.
    """
    schema = Schema(None if operation is Any else operation, upcast)
    if state is not None and not isinstance(state, Reducer):
        raise TypeError(f"state must be a journal.Reducer, not {type(state).__name__}: {state!r}")
    for name, hook in (("validate", validate), ("authorize", authorize)):
        if hook is not None:
            _check_function(hook, name)
    return Rules(schema, state, validate, authorize, states)
