"""Named cursors: kept beside the log, not in it."""

from collections.abc import Callable
from typing import Any

import pytest

from journal import Intent, InvalidCursorError, Journal

from .support import Peer, accept


def test_cursor_is_zero_when_never_saved(j: Journal) -> None:
    """An unknown name is at the start."""
    assert j.cursor("projector") == 0


def test_saved_cursor_is_given_back(j: Journal) -> None:
    """The last cursor saved under a name is the one; names know nothing of each other."""
    j.append_all("s", [(str(index), index) for index in range(5)])
    j.save_cursor("a", 2)
    j.save_cursor("b", 5)
    j.save_cursor("a", 3)

    assert (j.cursor("a"), j.cursor("b"), j.cursor("c")) == (3, 5, 0)


def test_saving_is_no_record(j: Journal) -> None:
    """Cursors are no log records: head and log stay as they are."""
    j.append("s", 1, op_id="1")
    j.save_cursor("c", 1)

    assert j.head() == 1
    assert j.append("s", 2, op_id="2").position == 2


@pytest.mark.parametrize("cursor", [-1, 3, 1_000])
def test_cursor_outside_the_log_is_refused(j: Journal, cursor: int) -> None:
    """`save_cursor` takes 0 to head; a refused one changes nothing."""
    accept(j, "k")
    j.save_cursor("c", 1)

    with pytest.raises(InvalidCursorError) as caught:
        j.save_cursor("c", cursor)

    assert (caught.value.cursor, caught.value.head) == (cursor, 2)
    assert j.cursor("c") == 1


@pytest.mark.parametrize("cursor", [0, 1, 2])
def test_every_place_from_start_to_head_can_be_saved(j: Journal, cursor: int) -> None:
    """0 and the head included, and any position between, whatever its record."""
    accept(j, "k")

    j.save_cursor("c", cursor)

    assert j.cursor("c") == cursor


def test_cursor_may_be_bound_to_a_stream(j: Journal) -> None:
    """A cursor of a stream is saved and read like any other."""
    j.append("s", 1, op_id="1")

    j.save_cursor("c", 1, stream="s")

    assert j.cursor("c") == 1


def test_cursors_survive_reopening(open_journal: Callable[..., Journal]) -> None:
    """A saved cursor is durable."""
    j = open_journal()
    j.append("s", 1, op_id="1")
    j.save_cursor("c", 1)
    j.close()

    assert open_journal().cursor("c") == 1


def test_cursors_are_shared_between_processes(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """What another process saved is seen at once, and survives its death."""
    peer = start_peer("write")
    peer.hear("opened")
    peer.tell("name")
    peer.hear("written")
    seen = j.cursor("name")
    peer.kill()

    assert seen == j.cursor("name") == 1


def test_what_recover_returns_can_be_saved(j: Journal) -> None:
    """A `Settled` is a cursor."""
    j.append("s", 1, op_id="1")
    settled: Any = j.recover(0, intents=lambda c: [Intent(("k", c.op_id), lambda: 1)])

    j.save_cursor("c", settled)

    assert j.cursor("c") == settled == 1
    assert j.recover(j.cursor("c"), intents=lambda _: pytest.fail("nothing is left")) == 1
