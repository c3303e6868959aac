"""A disk that is really full: a small file system of its own, and several processes that fill it, die, and go on."""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

import journal
from journal import Accepted, JournalFullError, Signal
from tests.crash.support.lines import append_line, read_lines
from tests.crash.support.processes import Processes, hear_parent, say_parent

PROCESSES = 4
SMALL, LARGE = "size=2m", "size=8m"

pytestmark = [pytest.mark.needs("root")]


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 2 MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", SMALL, "none", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


@pytest.fixture
def notes(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where recipients and acknowledgements are, on another disk."""
    return tmp_path


def work(path: pathlib.Path, notes: pathlib.Path, name: str) -> int:
    """Effects and operations until nothing more is taken; gives how many were acknowledged."""
    count = 0
    with journal.open(path, map_size=2**20) as j:
        say_parent("open")
        hear_parent()
        with contextlib.suppress(JournalFullError):
            while True:
                key = (name, count)

                def run(key: tuple[str, int] = key) -> str:
                    append_line(notes / "ran", list(key))
                    return f"m-{key[1]}"

                outcome = j.effect(key, run=run, reconcile=absent)
                assert outcome == Accepted(f"m-{count}", "run")
                append_line(notes / "settled", list(key))
                j.append(name, "x" * 3_000, op_id=str(count))
                append_line(notes / "appended", [name, str(count)])
                count += 1
    return count


def absent(signal: Signal) -> None:
    raise AssertionError(f"{signal.key} must not be asked about: its outcome was to be recorded")


def look(path: pathlib.Path, *, readonly: bool) -> tuple[list[tuple[str, str]], dict[str, str], list[str]]:
    """The operations, the phase of each effect, and what is wrong."""
    with journal.open(path, readonly=readonly) as j:
        operations = [(c.stream, c.op_id) for c in j.read()]
        phases = {repr(record.key): record.phase for record in j.effects()}
        return operations, phases, [finding.problem for finding in j.verify()]


def check(path: pathlib.Path, notes: pathlib.Path, processes: Processes) -> None:
    """What was acknowledged is there, and nothing ran twice or is left open."""
    for readonly in (True, False):
        operations, phases, problems = processes.run(look, path, readonly=readonly)
        ran = [repr(tuple(key)) for key in read_lines(notes / "ran")]
        settled = [repr(tuple(key)) for key in read_lines(notes / "settled")]
        assert problems == []
        assert {(stream, op_id) for stream, op_id in read_lines(notes / "appended")} <= set(operations)
        assert len(ran) == len(set(ran))
        assert set(settled) <= set(ran)
        assert set(ran) == set(phases)
        assert set(phases.values()) == {"accepted"}


@pytest.mark.parametrize("attempt", range(3))
def test_several_processes_fill_a_disk(
    processes: Processes, disk: pathlib.Path, notes: pathlib.Path, attempt: int
) -> None:
    """Each is refused, loses nothing, leaves no outcome unrecorded; with more room all of them go on."""
    path = disk / "journal"
    for size in (SMALL, LARGE):
        mount("-o", f"remount,{size}", str(disk))
        workers = [processes.start(work, path, notes, f"{size}-{index}") for index in range(PROCESSES)]
        for worker in workers:
            assert worker.hear() == "open"
        for worker in workers:
            worker.say("go")

        counts = [worker.value() for worker in workers]

        assert sum(counts) > 50
        check(path, notes, processes)


def write_to_readonly(path: pathlib.Path) -> list[str]:
    """The classes of what opening and writing raise on a file system that may not be written to."""
    raised = []
    for options in ({"readonly": True}, {}):
        try:
            with journal.open(path, **options) as j:  # type: ignore[arg-type]  # mypy does not see which options
                raised.append(f"opened with {[c.op_id for c in j.read()]}")
                j.append("s", 2, op_id="2")
        except (journal.JournalError, OSError) as error:
            raised.append(type(error).__name__)
    return raised


def make(path: pathlib.Path) -> None:
    """A journal with one operation."""
    with journal.open(path) as j:
        j.append("s", 1, op_id="1")


@pytest.mark.parametrize("was_open", [True, False])
def test_readonly_file_system_is_read(processes: Processes, disk: pathlib.Path, was_open: bool) -> None:
    """A reader needs nothing of it; whoever would write is told so, and nothing is changed."""
    path = disk / "journal"
    processes.run(make, path)
    if not was_open:
        (path / "lock.mdb").unlink()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    mount("-o", "remount,ro", str(disk))

    raised = processes.run(write_to_readonly, path)

    assert raised == ["opened with ['1']", "JournalReadonlyError", "OSError"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
