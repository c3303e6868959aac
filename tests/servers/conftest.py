"""A recipient and servers, none of which outlives its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import Recipient, Served, serving


@pytest.fixture
def recipient() -> Iterator[Recipient]:
    """A recipient that every process reaches and that outlives all of them."""
    recipient = Recipient()
    yield recipient
    recipient.close()


@pytest.fixture
def served(tmp_path: Path, recipient: Recipient) -> Iterator[Served]:
    """A server that the test starts."""
    with serving(tmp_path, recipient) as server:
        yield server
