"""After a fork: the child is refused at its first call, the parent is unharmed, the child may open for itself."""

from collections.abc import Callable
from pathlib import Path

from journal import Journal

from .support import Peer


def test_child_is_refused_and_parent_goes_on(
    start_peer: Callable[..., Peer], open_journal: Callable[..., Journal]
) -> None:
    """Every method raises `JournalForkedError` in the child; the parent appends after each child's exit."""
    peer = start_peer("fork_use")
    told = {}
    while (said := peer.hear("child", "parent"))["word"] == "child":
        told[said["method"]] = said["status"]

    assert told
    assert {method: status for method, status in told.items() if status != 3} == {}
    assert said["operations"] == [1, *told]
    assert said["head"] == len(told) + 1
    peer.finish()
    assert open_journal().head() == len(told) + 1


def test_child_may_open_for_itself(start_peer: Callable[..., Peer], path: Path) -> None:
    """The child opens the same path and appends, while the parent has it open, and the parent goes on."""
    peer = start_peer("fork_open")
    said = peer.hear("parent")

    assert said["status"] == 3
    assert said["operations"] == ["before", "child", "after"]
    peer.finish()
    assert path.is_dir()


def test_fork_in_the_middle_of_commits_hangs_nobody(start_peer: Callable[..., Peer]) -> None:
    """A thread commits while the process forks: whatever locks it held then, the children open and append."""
    peer = start_peer("fork_busy")
    said = peer.hear("parent")

    assert said["statuses"] == [3] * 20
    assert said["operations"] == list(range(20))
    assert said["is_whole"]
    peer.finish()
