"""The input of the demo: webhook deliveries, read from a file or made up."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from journal.options import VALUE_BYTES_MAX

IDENTITY_BYTES_MAX = 512
"""UTF-8 bytes of a delivery's identity: an effect's key holds it and more."""

MADE_OPERATIONS = 162
MADE_REDELIVERIES = 18

_EVENTS = ("order.paid", "order.refunded", "invoice.sent", "parcel.shipped", "account.closed")


class Delivery(msgspec.Struct, frozen=True):
    """One webhook delivery: an operation of the service, with `delivery` as its op_id."""

    delivery: str
    event: str
    payload: Any


class DeliveryError(ValueError):
    """A line of the input is no delivery; lines count from 1."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}; correct the line or leave it out"


def read_deliveries(path: Path) -> list[Delivery]:
    """The deliveries of a JSONL file, in its order; empty lines are passed over.

    Raises:
        DeliveryError: a line is not a JSON object with `delivery`, `event` and `payload`, is nothing that a journal
            keeps, or repeats the identity of an earlier line with something else.
        OSError: the file cannot be read.
    """
    first: dict[str, tuple[int, Delivery]] = {}
    deliveries = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                delivery = _decode(line)
            except ValueError as error:
                raise DeliveryError(path, number, str(error)) from error
            first_number, same = first.setdefault(delivery.delivery, (number, delivery))
            if same != delivery:
                problem = f"delivery {delivery.delivery!r} is another one than at line {first_number}"
                raise DeliveryError(path, number, problem)
            deliveries.append(delivery)
    return deliveries


def _decode(line: bytes) -> Delivery:
    """One line as a delivery, or the `ValueError` that says why it is none."""
    try:
        delivery = msgspec.json.decode(line, type=Delivery)
        size = len(msgspec.msgpack.encode(delivery))
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"not to be kept: {error}") from error
    if not 0 < len(delivery.delivery.encode()) <= IDENTITY_BYTES_MAX:
        raise ValueError(f"`delivery` must have 1 to {IDENTITY_BYTES_MAX} bytes")
    if size > VALUE_BYTES_MAX:
        raise ValueError(f"{size} bytes, more than the {VALUE_BYTES_MAX} of an operation")
    return delivery


def make_deliveries(seed: int) -> list[Delivery]:
    """Deliveries of a made-up shop, some of them sent again later, equal for equal seeds."""
    draw = random.Random(f"deliveries {seed}")
    deliveries = [_make_delivery(draw, number) for number in range(1, MADE_OPERATIONS + 1)]
    for _ in range(MADE_REDELIVERIES):
        first = draw.randrange(len(deliveries))
        deliveries.insert(draw.randint(first + 1, len(deliveries)), deliveries[first])
    return deliveries


def _make_delivery(draw: random.Random, number: int) -> Delivery:
    event = draw.choice(_EVENTS)
    payload = {"number": number, "cents": draw.randrange(100, 100_000), "currency": "EUR"}
    return Delivery(str(uuid.UUID(int=draw.getrandbits(128), version=4)), event, payload)


def find_redeliveries(deliveries: Sequence[Delivery]) -> set[int]:
    """The indexes of those that repeat the identity of an earlier one."""
    seen: set[str] = set()
    again = set()
    for index, delivery in enumerate(deliveries):
        if delivery.delivery in seen:
            again.add(index)
        seen.add(delivery.delivery)
    return again
