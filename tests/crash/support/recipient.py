"""The system at the other end: keeps what it was sent in a file of its own, so its count outlives every service."""

import contextlib
import fcntl
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from tests.crash.support.lines import append_line, read_lines

Kind = Literal["deduplicating", "askable", "proving"]
"""What a recipient can do for its callers.

- `deduplicating`: a key that it has seen is answered as the first time, and nothing is done again.
- `askable`: each request is done; it can say what it did for a key, but "nothing" proves nothing.
- `proving`: as askable, but what it does not know certainly did not happen.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)


class Request(msgspec.Struct, frozen=True):
    """One request as the recipient wrote it down; `is_done` is false where an earlier one was answered again."""

    key: str
    message: str
    is_done: bool


class Recipient:
    """One recipient over its directory, a file for each key; any number of processes may send to it."""

    def __init__(self, directory: pathlib.Path, kind: Kind) -> None:
        self.kind = kind
        self._directory = directory / kind
        self._directory.mkdir(parents=True, exist_ok=True)

    def deliver(self, key: str) -> str:
        """Does what is asked, and gives the name of the message."""
        with self._turn(key):
            earlier = self._requests(key)
            is_done = not earlier or self.kind != "deduplicating"
            message = f"{key} #{len(earlier)}" if is_done else earlier[0].message
            append_line(self._path(key), Request(key, message, is_done))
            return message

    def find(self, key: str) -> str | None:
        """The name of the first message that was delivered for the key, or `None`."""
        return next((request.message for request in self._requests(key)), None)

    def requests(self, key: str) -> int:
        """How often it was asked to deliver."""
        return len(self._requests(key))

    def deliveries(self, key: str) -> int:
        """How often it delivered."""
        return sum(request.is_done for request in self._requests(key))

    def known_keys(self) -> set[str]:
        """Every key that it was ever sent."""
        return {line["key"] for path in self._directory.glob("*.jsonl") for line in read_lines(path)}

    def _requests(self, key: str) -> list[Request]:
        return msgspec.convert(read_lines(self._path(key)), list[Request])

    def _path(self, key: str) -> pathlib.Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()}.jsonl"

    @contextlib.contextmanager
    def _turn(self, key: str) -> Iterator[None]:
        """One sender at a time; the kernel ends the turn of one that dies."""
        with self._path(key).with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
