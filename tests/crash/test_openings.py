"""A journal is opened while another process commits: whatever comes between two lines of the one, it opens."""

import sys
from types import FrameType
from typing import Any

import lmdb.verify
import pytest

from journal._storage import files
from tests.crash.support.deaths import NEVER, Fuse
from tests.crash.support.processes import Processes, hear_parent, say_parent
from tests.crash.support.service import STREAM, Delivery, World

COMMITS_DURING_VERIFY = 20
"""Enough for LMDB to use pages again that a look from outside is still reading."""


def commit_when_told(world: World) -> None:
    """Commits something each time that it is told to, of sizes that move the end of the file."""
    with world.open() as j:
        say_parent("open")
        while (number := hear_parent()) is not None:
            content = "x" * (int(str(number)) * 7919 % 30_000)
            j.append(STREAM, Delivery("proving", content), op_id=str(number))
            say_parent("committed")


def open_slowly(world: World, length: int) -> int:
    """Opens the journal, and lets others commit at the `length`-th line of looking at its files and while verifying.

    Gives how many such lines there are.
    """
    lines = Fuse(NEVER)
    left = COMMITS_DURING_VERIFY

    def pause() -> None:
        say_parent("commit")
        hear_parent()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in {files.__file__, lmdb.verify.__file__}:
            return None
        if event == "line" and frame.f_code.co_filename == files.__file__:
            lines.reach("looking at the files")
            if lines.count == length:
                pause()
        elif event == "line" and left and frame.f_lineno % 3 == 0:
            left -= 1
            pause()
        return trace

    sys.settrace(trace)
    with lines.burning(), world.open(create=False):
        sys.settrace(None)
    say_parent(None)
    return lines.count


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commit_between_two_lines_of_an_open_is_no_damage(processes: Processes, world: World) -> None:
    """At each line in turn: the file may grow, and pages may be used again, while it is looked at."""
    writer = processes.start(commit_when_told, world)
    assert writer.hear() == "open"
    length, number, commits = 0, 1, 0
    while length < number:
        length += 1
        opener = processes.start(open_slowly, world, length)
        while opener.hear() is not None:
            commits += 1
            writer.say(commits)
            assert writer.hear() == "committed"
            opener.say("go on")
        number = opener.value()
        processes.forget(opener)
    writer.say(None)
    writer.value()

    assert commits >= number
