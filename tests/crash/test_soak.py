"""A minute of the soak; more by `python -m tests.crash.soak`."""

import pathlib

import pytest

from tests.crash.soak import TEAM, soak
from tests.crash.support.processes import Processes

SECONDS = 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_processes_killed_and_stopped_for_a_minute_lose_and_double_nothing(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    """Four append and settle, half of them in tasks, two walk, two read: what was acknowledged is there once, and everything is settled."""
    summary = soak(processes, tmp_path, SECONDS, seed=1)

    assert str(TEAM) in summary
