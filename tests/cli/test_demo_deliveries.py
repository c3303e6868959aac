"""The demo's input: what is taken for a delivery, and what is refused with its line."""

from pathlib import Path

import pytest

from journal.cli.demo.deliveries import (
    IDENTITY_BYTES_MAX,
    MADE_OPERATIONS,
    MADE_REDELIVERIES,
    Delivery,
    DeliveryError,
    find_redeliveries,
    make_deliveries,
    read_deliveries,
)

GOOD = b'{"delivery": "a", "event": "star", "payload": {"n": 1}}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"delivery": "a", "event": "star"}',
        b'{"delivery": 7, "event": "star", "payload": {}}',
        b'{"delivery": "", "event": "star", "payload": {}}',
        b'{"delivery": "%s", "event": "star", "payload": {}}' % (b"x" * (IDENTITY_BYTES_MAX + 1)),
        b'{"delivery": "b", "event": "star", "payload": 36893488147419103232}',
        b'{"delivery": "b", "event": "star", "payload": %s}' % (b"[" * 5_000 + b"]" * 5_000),
        b'{"delivery": "b", "event": "\xff", "payload": {}}',
        b'{"delivery": "a", "event": "star", "payload": {"n": 2}}',
    ],
    ids=["cut", "array", "field", "type", "empty", "long", "integer", "deep", "text", "conflict"],
)
def test_malformed_line_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    """What is no delivery, or none that a journal keeps, is told with its place; empty lines count."""
    path = tmp_path / "input.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)

    with pytest.raises(DeliveryError, match="line 3: ") as raised:
        read_deliveries(path)

    assert raised.value.line == 3


def test_deliveries_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Redeliveries stay where they are; empty lines are passed over."""
    path = tmp_path / "input.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD.replace(b'"a"', b'"b"') + GOOD)

    deliveries = read_deliveries(path)

    assert deliveries == [Delivery(name, "star", {"n": 1}) for name in ("a", "b", "a")]
    assert find_redeliveries(deliveries) == {2}


def test_made_deliveries_are_equal_for_equal_seeds() -> None:
    """A made input can be made again from its seed, and has redeliveries."""
    made = make_deliveries(1)

    assert made == make_deliveries(1) != make_deliveries(2)
    assert len(made) == MADE_OPERATIONS + MADE_REDELIVERIES
    assert len(find_redeliveries(made)) == MADE_REDELIVERIES
