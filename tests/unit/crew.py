"""A protocol and those that it spawns, driven in one thread in whatever order somebody chooses.

What happens beside each other happens here one request at a time, so that a test can go through the orders, and repeat
one. Over `Memory`, as `Play`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from journal._core import requests
from journal._core.requests import CutOffError, Ended, RunRaisedError, Steps
from tests.unit.support import Hold, Memory

T = TypeVar("T")

LEAD = "lead"
"""The tag of the protocol that the others belong to."""


class Answered(NamedTuple):
    """A request that was answered, who asked, and how many had been answered when it was asked."""

    tag: Any
    request: Any
    asked_at: int


class Hand:
    """One protocol, and the request that it waits to have answered."""

    def __init__(self, crew: Crew[Any], tag: Any, protocol: Steps[Any]) -> None:
        self.tag = tag
        self.request: Any = None
        self.ended: Ended | None = None
        self.asked_at = 0
        """How many requests had been answered when this one was asked."""
        self._crew = crew
        self._protocol = protocol
        self._joined: Hold | None = None
        self._entered: list[Hold] = []
        self._go_on(lambda: next(protocol))

    @property
    def can_go_on(self) -> bool:
        """Whether its request can be answered now."""
        if self.ended is not None:
            return False
        if isinstance(self.request, requests.Await):
            return bool(self._crew.ended)
        if isinstance(self.request, requests.Enter) and self.request.wait:
            self._joined = self._joined or self._flight_of_another(self.request)
            return self._joined is None or bool(self._joined.ends)
        return True

    def step(self) -> None:
        """Have its request answered."""
        self._crew.trail.append(Answered(self.tag, self.request, self.asked_at))
        try:
            answer = self._answer()
        except BaseException as error:
            thrown = error
            self._go_on(lambda: self._protocol.throw(thrown))
        else:
            self._go_on(lambda: self._protocol.send(answer))

    def throw(self, error: BaseException) -> None:
        """Have an exception thrown in at its request."""
        self._go_on(lambda: self._protocol.throw(error))

    def close(self) -> None:
        """Give it up, as a driver does that was interrupted where the protocol could not be told."""
        self._protocol.close()
        self._end(Ended(self.tag))

    def _flight_of_another(self, request: requests.Enter) -> Hold | None:
        return self._crew.memory.in_flight.get((request.space, request.form))

    def _answer(self) -> Any:
        if isinstance(self.request, requests.Spawn):
            self._crew.begin(self.request)
            return None
        if isinstance(self.request, requests.Await):
            return self._crew.ended.popleft()
        joined, self._joined = self._joined, None
        if joined is not None:
            if joined.ends[0] is not None:
                raise joined.ends[0]
            return None
        try:
            answer = self._crew.memory.perform(self.request)
        except GeneratorExit as error:
            raise CutOffError(error) from error
        if isinstance(answer, Hold):
            self._entered.append(answer)
        return answer

    def _go_on(self, advance: Callable[[], Any]) -> None:
        self.asked_at = len(self._crew.trail)
        try:
            self.request = advance()
        except StopIteration as end:
            self._end(Ended(self.tag, end.value))
        except (RunRaisedError, CutOffError) as error:
            self._end(Ended(self.tag, error=error.error))
        except BaseException as error:
            self._end(Ended(self.tag, error=error))

    def _end(self, ended: Ended) -> None:
        self.ended = ended
        # As every driver does, whatever the protocol was told.
        for hold in self._entered:
            if not hold.ends:
                hold.end()
        if self.tag != LEAD:
            self._crew.ended.append(ended)


class Crew(Generic[T]):
    """A protocol with everything that it spawns; `choose` says which of those that can go on does."""

    def __init__(self, protocol: Steps[T], memory: Memory, choose: Callable[[list[Hand]], Hand]) -> None:
        self.memory = memory
        self.ended: deque[Ended] = deque()
        self.trail: list[Answered] = []
        self.hands: list[Hand] = []
        self.together_max = 0
        self._choose = choose
        self.lead = Hand(self, LEAD, protocol)
        self.hands.append(self.lead)

    def begin(self, request: requests.Spawn) -> None:
        """Another protocol runs beside the others."""
        self.hands.append(Hand(self, request.tag, request.protocol))
        running = [hand for hand in self.hands if hand.ended is None and hand is not self.lead]
        self.together_max = max(self.together_max, len(running))

    def hand(self, tag: Any) -> Hand:
        """The protocol with this tag."""
        (found,) = [hand for hand in self.hands if hand.tag == tag]
        return found

    def step(self) -> bool:
        """Let one of those that can go on do so; false where nobody can."""
        free = [hand for hand in self.hands if hand.can_go_on]
        if free:
            self._choose(free).step()
        return bool(free)

    def finish(self) -> T:
        """Let everybody go on to the end; what the protocol returns or raises."""
        while self.step():
            pass
        assert all(hand.ended for hand in self.hands), "everybody waits for somebody"
        return self.result()

    def result(self) -> T:
        """What the protocol returned or raised."""
        ended = self.lead.ended
        assert ended is not None
        if ended.error is not None:
            raise ended.error
        returned: T = ended.value
        return returned


def first_free(free: list[Hand]) -> Hand:
    """Whoever was spawned first goes on as far as it can."""
    return free[0]


def last_free(free: list[Hand]) -> Hand:
    """Whoever was spawned last goes on as far as it can."""
    return free[-1]
