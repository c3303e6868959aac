"""A recipient and servers, none of which outlives its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import Recipient, Served


@pytest.fixture
def recipient() -> Iterator[Recipient]:
    """A recipient that every process reaches and that outlives all of them."""
    recipient = Recipient()
    yield recipient
    recipient.close()


@pytest.fixture
def served(tmp_path: Path, recipient: Recipient) -> Iterator[Served]:
    """A server that the test starts; what it prints must not tell of anything forgotten."""
    server = Served(tmp_path, recipient)
    yield server
    server.close()
    forgotten = ("never retrieved", "never awaited", "Exception ignored", "was destroyed")
    assert [line for line in server.log().splitlines() if any(words in line for words in forgotten)] == []
