"""`wait`: until something is committed past a position, by this process or another one."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import Cursor, InvalidCursorError, Journal, JournalClosedError

from .support import PATIENCE, Call, Peer, accept


def test_wait_does_not_wait_for_what_is_there(j: Journal) -> None:
    """What is past the position already is answered at once, with the head."""
    j.append_all("s", [("1", 1), ("2", 2)])

    head = j.wait(1)

    assert head == 2
    assert isinstance(head, Cursor)


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_wait_at_its_timeout_gives_the_head(j: Journal, timeout: float) -> None:
    """As it is; nothing is raised."""
    j.append("s", 1, op_id="1")

    assert j.wait(1, timeout) == 1
    assert j.wait(1, timeout=timeout) == 1


@pytest.mark.parametrize("does", [lambda j: j.append("s", 2, op_id="2"), lambda j: accept(j, "k")])
def test_wait_ends_with_the_next_commit(j: Journal, does: Callable[[Journal], Any]) -> None:
    """Of an operation, or of an effect's event."""
    j.append("s", 1, op_id="1")
    waiting = Call(lambda: j.wait(1))
    waiting.wait_until_it_waits()
    assert not waiting.is_done

    does(j)

    assert waiting.result() > 1


def test_wait_sees_what_another_process_commits(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """Nobody tells it: it looks."""
    waiting = Call(lambda: j.wait(0, PATIENCE))
    waiting.wait_until_it_waits()

    start_peer("append", stream="s", op_ids=["1"]).hear("opened")

    assert waiting.result() == 1


def test_wait_of_a_readonly_handle(open_journal: Callable[..., Journal]) -> None:
    """It writes nothing, so it may."""
    open_journal().close()
    j = open_journal(readonly=True)

    assert j.wait(0, 0) == 0


@pytest.mark.parametrize("after", [-1, 1])
def test_wait_outside_of_the_log_is_refused(j: Journal, after: int) -> None:
    """At the call."""
    with pytest.raises(InvalidCursorError):
        j.wait(after)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_wait_for_no_span_of_time_is_refused(j: Journal, timeout: Any) -> None:
    """It would never end, or at once."""
    with pytest.raises(ValueError, match="timeout"):
        j.wait(0, timeout)


def test_close_ends_a_wait(open_journal: Callable[..., Journal]) -> None:
    """It looks again and finds the journal closed."""
    j = open_journal()
    waiting = Call(lambda: j.wait(0))
    waiting.wait_until_it_waits()

    j.close()

    assert isinstance(waiting.error(), JournalClosedError)
