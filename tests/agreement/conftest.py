"""The journal under test comes from `open_journal` or `j`, and that from a façade: a second façade is one row more."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import journal
from journal import Journal

from .loops import AsyncFacade
from .support import Clock, FileRecipient, Peer


class Facade(Protocol):
    """Opens a journal whose methods have the synchronous signatures."""

    is_loop: bool
    """Whether calls are tasks of an event loop."""

    def open(self, path: Path, **options: Any) -> Journal: ...

    def close(self) -> None: ...

    @property
    def thread(self) -> int:
        """The thread in which calls do what they do."""


class SyncFacade:
    """The journal itself."""

    is_loop = False

    def open(self, path: Path, **options: Any) -> Journal:
        return journal.open(path, **options)

    def close(self) -> None:
        """Nothing."""

    @property
    def thread(self) -> int:
        return threading.get_ident()


FACADES: dict[str, Callable[[], Facade]] = {"sync": SyncFacade, "async": AsyncFacade}


@pytest.fixture(params=sorted(FACADES))
def facade(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """One of the façades."""
    made = FACADES[request.param]()
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    """The clock of every journal that the test opens."""
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is; nothing is there yet."""
    return tmp_path / "journal"


@pytest.fixture
def open_journal(facade: Facade, path: Path, clock: Clock) -> Iterator[Callable[..., Journal]]:
    """Opens a journal, at `path` unless told otherwise, and closes it after the test."""
    opened: list[Journal] = []

    def open_one(where: Path | str | None = None, **options: Any) -> Journal:
        handle = facade.open(Path(path if where is None else where), **{"clock": clock, **options})
        opened.append(handle)
        return handle

    yield open_one
    for handle in reversed(opened):
        handle.close()


@pytest.fixture
def j(open_journal: Callable[..., Journal]) -> Journal:
    """A fresh journal."""
    return open_journal()


@pytest.fixture
def recipient(tmp_path: Path) -> FileRecipient:
    """A recipient that this and every other process reaches."""
    return FileRecipient(tmp_path / "recipient.jsonl")


@pytest.fixture
def start_peer(path: Path, recipient: FileRecipient) -> Iterator[Callable[..., Peer]]:
    """Starts another process on the same journal and recipient."""
    peers: list[Peer] = []

    def start(scenario: str, **arguments: Any) -> Peer:
        where = arguments.pop("where", path)
        peer = Peer(scenario, where, recipient=str(recipient.path), **arguments)
        peers.append(peer)
        return peer

    yield start
    for peer in peers:
        peer.dispose()
