"""Lines that survive the death of whoever wrote them: one `write` each, at the end of a file.

No flush to the disk: the page cache outlives a process, and it is processes that die here.
"""

import os
import pathlib
from typing import Any

import msgspec


def append_line(path: pathlib.Path, value: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(value) + b"\n")
    finally:
        os.close(descriptor)


def read_lines(path: pathlib.Path) -> list[Any]:
    """Every line, decoded, in the order of writing; none where there is no file."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []
