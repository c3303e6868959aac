"""`journal demo` as it is run: real processes, real kills, and a verdict that can fail."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from journal.cli.app import app
from journal.cli.demo import stage
from journal.cli.demo.deliveries import find_redeliveries, make_deliveries
from journal.cli.demo.kinds import Kind, kind_of
from journal.cli.demo.stage import JOURNAL, Cast

MADE = make_deliveries(5)
DELIVERIES = [*MADE[:26], MADE[3], MADE[26], MADE[8], MADE[27]]
OPERATIONS = len(DELIVERIES) - len(find_redeliveries(DELIVERIES))


@pytest.fixture
def input_path(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(delivery) + b"\n" for delivery in DELIVERIES))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


def run_json(*arguments: str | Path) -> tuple[int, Any]:
    done = run("--json", *arguments)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.slow
def test_killed_service_keeps_its_promise(input_path: Path) -> None:
    """Some kills, some input: everything is sent, nothing doubled or lost, and the report says so."""
    status, report = run_json("--input", input_path, "--seed", "3", "--kills", "6")

    assert status == 0, report["broken"]
    assert (report["lines"], report["operations"], report["seed"]) == (len(DELIVERIES), OPERATIONS, 3)
    assert report["journal"]["operations"] == OPERATIONS
    assert report["journal"]["survived"]["redeliveries_answered"] == len(DELIVERIES) - OPERATIONS > 0
    trials = [report["journal"], *report["without"].values()]
    assert [trial["survived"]["kills"] for trial in trials] == [6, 6, 6]
    for kind, tally in report["journal"]["kinds"].items():
        sent = sum(kind_of(op_id) == kind for op_id in {delivery.delivery for delivery in DELIVERIES})
        assert tally["sent"] == sent > 0
        assert (tally["doubled"], tally["lost"]) == (0, 0)
        assert tally["uncertain"] == 0 or kind == Kind.ASKABLE
        assert sent - tally["received"] <= tally["uncertain"]


@pytest.mark.slow
def test_table_is_printed_and_files_are_kept(input_path: Path, tmp_path: Path) -> None:
    """Without `--json` people get tables; `--keep` leaves what they were counted from."""
    done = run("--input", input_path, "--kills", "0", "--keep", tmp_path / "kept")

    assert done.exit_code == 0, done.output
    assert f"{len(DELIVERIES)} deliveries: {OPERATIONS} operations" in done.stdout
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(stage.CASTS)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["twice", "never"])
def test_sabotaged_service_fails_the_demo(input_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A service that performs effects twice, or not at all, is found out by the recipient's own count."""
    monkeypatch.setitem(stage.CASTS, JOURNAL, Cast("tests.cli.sabotaged_service", (how,)))

    status, report = run_json("--input", input_path, "--kills", "0")

    assert status == 1
    wrong = {"twice": "doubled", "never": "lost"}[how]
    kinds = [Kind.ASKABLE, Kind.PROVABLE] if how == "twice" else list(Kind)
    assert report["broken"] == [
        f"{wrong} at the recipient that is {kind}: {report['journal']['kinds'][kind]['sent']}, not 0" for kind in kinds
    ]


def test_service_that_crashes_fails_the_demo(input_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash that the supervisor did not order is told with what the service printed."""
    monkeypatch.setitem(stage.CASTS, JOURNAL, Cast("tests.cli.stand_in", ("crash",)))

    done = run("--input", input_path, "--kills", "1", "--seed", "3")

    assert done.exit_code == 1
    assert "this stand-in crashes" in done.stderr
    assert "seed 3" in done.stderr


def empty(folder: Path) -> list[str]:
    (folder / "empty.jsonl").touch()
    return ["--input", str(folder / "empty.jsonl")]


def malformed(folder: Path) -> list[str]:
    (folder / "bad.jsonl").write_text('{"delivery": "a", "event": "b", "payload": 1}\n{"delivery": 7}\n')
    return ["--input", str(folder / "bad.jsonl")]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (lambda folder: ["--input", str(folder / "absent.jsonl")], "does not exist"),
        (lambda folder: ["--input", str(folder)], "is a directory"),
        (malformed, "line 2"),
        (empty, "no deliveries"),
        (lambda folder: ["--kills", "-1"], "--kills"),
        (lambda folder: ["--seed", "one"], "--seed"),
        (lambda folder: ["--keep", str(folder)], "--keep"),
        (lambda folder: ["--unknown"], "--unknown"),
    ],
    ids=["absent", "folder", "malformed", "empty", "kills", "seed", "keep", "option"],
)
def test_wrong_use_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Callable[[Path], list[str]], said: str
) -> None:
    """What cannot be run is refused before anything starts, and named."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    done = run(*arguments(tmp_path))

    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(input_path: Path, tmp_path: Path, number: signal.Signals) -> None:
    """On a terminal there are bars; interrupted in the middle, every process ends and every file goes."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "journal.cli", "demo", "--input", str(input_path), "--kills", "1000"]
    environment = os.environ | {"TMPDIR": str(temporary), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env=environment) as demo:
        os.close(terminal)
        shown = b""
        while b"3/1000 kills" not in shown:
            shown += os.read(master, 4096)
        inside = processes_in(temporary)

        demo.send_signal(number)
        with contextlib.suppress(OSError):  # A terminal whose other end is closed.
            while os.read(master, 4096):
                pass
        status = demo.wait()

    os.close(master)
    assert inside
    assert status not in {0, 2}
    assert processes_in(temporary) == []
    assert list(temporary.iterdir()) == []


def processes_in(folder: Path) -> list[str]:
    """The command lines, of all processes, that name a path in `folder`."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # Ended while we looked.
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line:
                lines.append(line)
    return lines
