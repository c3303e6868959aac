"""Feeds a service, kills it at drawn moments and starts it again, until every delivery is acknowledged and done."""

import random
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from journal.cli.demo import feed
from journal.cli.demo.children import Child
from journal.cli.demo.deliveries import Delivery, find_redeliveries

PACE_SECONDS_FIRST = 0.03
"""What a delivery is taken to last before any has been measured."""

PACE_DELIVERIES = 1.5
"""A kill comes within so many deliveries after the acknowledgment that it is drawn for."""

RESTART_KILLED_ONE_IN = 4
"""Share of kills that are drawn for the life right after another kill: they meet the recovery."""


class Moment(msgspec.Struct, frozen=True):
    """When to kill: `share` of a delivery's usual duration after `acknowledged` of them were acknowledged.

    Counted in deliveries and not in seconds, so that moments are spread over all the work however fast the machine,
    and are the same for services of different speed.
    """

    acknowledged: int
    share: float


def draw_moments(seed: int, *, kills: int, deliveries: int) -> list[Moment]:
    """So many moments in order, equal for equal seeds; after each of them there is work left."""
    draw = random.Random(f"kills {seed}")
    counts: list[int] = []
    for _ in range(kills):
        again = counts and draw.randrange(RESTART_KILLED_ONE_IN) == 0
        counts.append(counts[-1] if again else draw.randrange(deliveries))
    return [Moment(count, draw.uniform(0, PACE_DELIVERIES)) for count in sorted(counts)]


class Survived(msgspec.Struct, frozen=True, kw_only=True):
    """What a service went through.

    `interruptions` counts the starts that found effects without an outcome; `resends` the deliveries that were sent
    again because a kill came before their acknowledgment; `redeliveries_answered` those of the input that repeat an
    earlier one and were acknowledged as repeated.
    """

    kills: int
    interruptions: int
    resends: int
    redeliveries_answered: int
    seconds: float


class Supervisor:
    """Drives one service through all deliveries and all moments; used once."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        moments: Sequence[Moment],
        *,
        start: Callable[[], Child],
        progress: Callable[[int, int], None],
    ) -> None:
        self._lines = [msgspec.json.encode(delivery) for delivery in deliveries]
        self._redeliveries = find_redeliveries(deliveries)
        self._moments = moments
        self._start = start
        self._progress = progress
        self._acknowledged = 0
        self._sent = 0
        self._kills = 0
        self._interruptions = 0
        self._resends = 0
        self._redeliveries_answered = 0
        self._pace = _Pace()

    def run(self) -> Survived:
        """Start the service as often as it takes.

        Raises:
            ChildError: it ended otherwise than by a kill of ours or by the end of its input.
        """
        began = time.monotonic()
        while not self._live():
            self._progress(self._acknowledged, self._kills)
        return Survived(
            kills=self._kills,
            interruptions=self._interruptions,
            resends=self._resends,
            redeliveries_answered=self._redeliveries_answered,
            seconds=time.monotonic() - began,
        )

    def _live(self) -> bool:
        """One life of the service; True when it has done everything and ended by itself."""
        service = self._start()
        self._pace.pause()
        kill_at = None
        while self._acknowledged < len(self._lines):
            said = service.receive(kill_at)
            if said is None:
                break
            self._hear(msgspec.json.decode(said, type=feed.Said), service)
            if kill_at is None:
                kill_at = self._next_kill()
        status = service.finish()
        if kill_at is not None and status == -signal.SIGKILL:
            self._kills += 1
            return False
        if status != 0:
            raise service.error(f"ended by itself with status {status}")
        return True

    def _hear(self, said: feed.Said, service: Child) -> None:
        match said:
            case feed.Started():
                self._send_next(service)
            case feed.Opened(unfinished):
                self._interruptions += unfinished > 0
            case feed.Acknowledged(repeated):
                self._redeliveries_answered += repeated and self._acknowledged in self._redeliveries
                self._acknowledged += 1
                self._pace.step()
                self._progress(self._acknowledged, self._kills)
                self._send_next(service)

    def _send_next(self, service: Child) -> None:
        """Send the first delivery that is not acknowledged; the last one only when nothing is to be killed any more.

        So the service cannot be done before the last kill.
        """
        left = len(self._lines) - self._acknowledged
        if left > 1 or (left == 1 and self._kills == len(self._moments)):
            self._resends += self._acknowledged < self._sent
            self._sent = self._acknowledged + 1
            service.send(self._lines[self._acknowledged])

    def _next_kill(self) -> float | None:
        """When to kill this life, in monotonic seconds, once it has come so far."""
        if self._kills == len(self._moments):
            return None
        moment = self._moments[self._kills]
        if moment.acknowledged > self._acknowledged:
            return None
        return time.monotonic() + moment.share * self._pace.seconds


class _Pace:
    """The mean time from one acknowledgment to the next within a life."""

    def __init__(self) -> None:
        self.seconds = PACE_SECONDS_FIRST
        self._total_seconds = 0.0
        self._count = 0
        self._stepped_at: float | None = None

    def pause(self) -> None:
        """The next acknowledgment comes after a start: it measures nothing."""
        self._stepped_at = None

    def step(self) -> None:
        """An acknowledgment came."""
        now = time.monotonic()
        if self._stepped_at is not None:
            self._total_seconds += now - self._stepped_at
            self._count += 1
            self.seconds = self._total_seconds / self._count
        self._stepped_at = now
