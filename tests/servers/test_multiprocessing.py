"""multiprocessing and its pools, by each way to start a process, beside a parent that has the journal open."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import journal

from .payments import Payment
from .pools import COUNT, NAMES, WAYS
from .support import PATIENCE, Recipient, end_session, environment_of


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_open_for_themselves_share_a_journal(
    tmp_path: Path, recipient: Recipient, method: str, way: str
) -> None:
    """All of them append and run effects at once, what they share is delivered once, and the parent goes on."""
    recipient.hold(*NAMES)

    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", f"{__package__}.pools", method, way],
        env=environment_of(tmp_path, recipient),
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        try:
            recipient.wait_until_delivered(*NAMES)  # one each is in the hands of every process
            recipient.release()
            printed, _ = parent.communicate(timeout=PATIENCE)
        finally:
            end_session(parent.pid)

    said = json.loads(printed)
    assert parent.returncode == 0
    assert len({answer["pid"] for answer in said["paid"]} - {parent.pid}) == COUNT
    assert {said["before"]["pid"], said["after"]["pid"]} == {parent.pid}
    names = ["before", *NAMES, "shared", "after"]
    assert [len(recipient.deliveries(name)) for name in names] == [1] * len(names)
    with journal.open(tmp_path / "journal", operation=Payment) as j:
        assert sorted(committed.operation.name for committed in j.read()) == sorted(names)
        assert {record.phase for record in j.effects()} == {"accepted"}
        assert list(j.verify()) == []
