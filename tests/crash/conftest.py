"""Processes and worlds for the crash tests."""

import pathlib
from collections.abc import Iterator

import pytest

from tests.crash.support.processes import Processes, Server
from tests.crash.support.service import World


@pytest.fixture(scope="session")
def server() -> Iterator[Processes]:
    """The process that forks all the others."""
    with Server() as processes:
        yield processes


@pytest.fixture
def processes(server: Processes) -> Iterator[Processes]:
    """Starts processes, and leaves none behind."""
    yield server
    server.end()


@pytest.fixture
def world(tmp_path: pathlib.Path) -> World:
    """An empty world."""
    return World(str(tmp_path))
