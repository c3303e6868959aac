"""The demo's supervisor: what is sent, when it kills, and that nothing survives it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.cli.demo import children as children_module
from journal.cli.demo.children import Child, ChildError, Children
from journal.cli.demo.deliveries import Delivery
from journal.cli.demo.supervisor import Moment, Supervisor, draw_moments

DELIVERIES = [Delivery(name, "event", {}) for name in "abcadefgbh"]


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as started:
        yield started


def start(children: Children, folder: Path, how: str) -> Child:
    return children.start("tests.cli.stand_in", how, folder, log=folder / "log.txt")


def supervise(children: Children, folder: Path, how: str, moments: list[Moment]) -> Supervisor:
    return Supervisor(
        DELIVERIES, moments, start=lambda: start(children, folder, how), progress=lambda _acknowledged, _kills: None
    )


@pytest.mark.parametrize("deliveries", [1, 2, 7, 324])
def test_after_each_moment_there_is_work_left(deliveries: int) -> None:
    """Moments come in order, are equal for equal seeds, and none waits for the last acknowledgment."""
    moments = draw_moments(3, kills=40, deliveries=deliveries)

    assert (
        moments == draw_moments(3, kills=40, deliveries=deliveries) != draw_moments(4, kills=40, deliveries=deliveries)
    )
    assert len(moments) == 40
    counts = [moment.acknowledged for moment in moments]
    assert counts == sorted(counts)
    assert 0 <= counts[0] <= counts[-1] < deliveries


def test_service_without_kills_is_sent_everything_once(children: Children, tmp_path: Path) -> None:
    """One life, each line of the input in order; what repeats an earlier one is counted where it was answered so."""
    survived = supervise(children, tmp_path, "well", []).run()

    assert (tmp_path / "done.txt").read_text().split() == [delivery.delivery for delivery in DELIVERIES]
    assert (survived.kills, survived.interruptions, survived.resends) == (0, 1, 0)
    assert survived.redeliveries_answered == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_kill_is_delivered_and_nothing_left_out(children: Children, tmp_path: Path, seed: int) -> None:
    """However many kills for so few deliveries: all of them come before the end, and everything is taken over."""
    moments = draw_moments(seed, kills=12, deliveries=len(DELIVERIES))

    survived = supervise(children, tmp_path, "well", moments).run()

    taken = (tmp_path / "done.txt").read_text().split()
    assert survived.kills == 12
    assert survived.redeliveries_answered == 2
    assert list(dict.fromkeys(taken)) == list("abcdefgh")
    assert len(taken) <= len(DELIVERIES) + survived.resends


def test_service_that_fails_by_itself_is_not_started_again(children: Children, tmp_path: Path) -> None:
    """A crash that nobody ordered ends the demo, with what the service printed."""
    with pytest.raises(ChildError, match=r"`stand_in` ended by itself with status 1.*\n.*this stand-in crashes"):
        supervise(children, tmp_path, "crash", []).run()


def test_service_that_says_nothing_is_given_up(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang is told as such, and does not hang the demo."""
    monkeypatch.setattr(children_module, "LINE_SECONDS_MAX", 0.1)

    with pytest.raises(ChildError, match="said nothing for"):
        supervise(children, tmp_path, "silent", []).run()


def test_service_that_does_not_end_is_given_up(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that goes on after its input ended."""
    monkeypatch.setattr(children_module, "END_SECONDS_MAX", 0.1)

    with pytest.raises(ChildError, match="did not end within"):
        supervise(children, tmp_path, "busy", []).run()


def test_child_imports_what_this_process_imports(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the working directory that is called like the library is not taken for it."""
    (tmp_path / "journal.py").write_text("raise SystemExit('imported by mistake')")
    monkeypatch.chdir(tmp_path)

    survived = supervise(children, tmp_path, "well", []).run()

    assert survived.kills == 0


def test_no_child_outlives_the_block(tmp_path: Path) -> None:
    """Whatever a child was doing, it is gone when the block is left, and no other can be started."""
    with pytest.raises(KeyboardInterrupt), Children() as children:
        child = start(children, tmp_path, "silent")
        raise KeyboardInterrupt

    with pytest.raises(ProcessLookupError):
        os.kill(child._process.pid, 0)
    with pytest.raises(ChildError, match="the demo is ending"):
        start(children, tmp_path, "well")
