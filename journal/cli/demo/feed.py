"""What supervisor and service say to each other, one JSON object a line.

The supervisor stands for the sender of the webhooks: it sends a delivery on the service's standard input, waits
until it is acknowledged on standard output, then sends the next, and after a kill sends again from the first that
was not acknowledged. The end of the input ends the service.
"""

import sys
from collections.abc import Iterator

import msgspec

from journal.cli.demo.deliveries import Delivery


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The service runs and is about to open what it keeps."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The service opened its journal and found so many effects without an outcome."""

    unfinished: int


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """The delivery sent last is taken over; `repeated` where it had been before."""

    repeated: bool


Said = Started | Opened | Acknowledged


def say(said: Said) -> None:
    """Tell the supervisor."""
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def receive() -> Iterator[Delivery]:
    """The deliveries that the supervisor sends, until there are no more."""
    for line in sys.stdin.buffer:
        yield msgspec.json.decode(line, type=Delivery)
