"""How long things take between the service and the recipient.

Most delays are a few milliseconds. A few are long enough for a killed service to be back and asking while its
last request is still on the way, or performed and not yet answered: without these the demo would be too kind.
"""

import random
import time

import msgspec

SECONDS_MIN = 0.001
SECONDS_MAX = 0.005
SLOW_ONE_IN = 30
SLOW_SECONDS_MIN = 0.2
SLOW_SECONDS_MAX = 0.6


class Latency(msgspec.Struct, frozen=True):
    """Draws the same delay for the same place, key and attempt in every run with one seed."""

    seed: int

    def seconds(self, place: str, key: str, attempt: int) -> float:
        """The delay at `place`: "connect", "before" or "after" the recipient's commit."""
        draw = random.Random(f"{self.seed} {place} {key} {attempt}")
        if draw.randrange(SLOW_ONE_IN) == 0:
            return draw.uniform(SLOW_SECONDS_MIN, SLOW_SECONDS_MAX)
        return draw.uniform(SECONDS_MIN, SECONDS_MAX)

    def wait(self, place: str, key: str, attempt: int) -> None:
        """Sleep for that delay."""
        time.sleep(self.seconds(place, key, attempt))
