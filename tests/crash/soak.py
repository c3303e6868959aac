"""Many processes on one journal for a long time, killed, stopped and started again at random; then all must add up.

    python -m tests.crash.soak --seconds 600 --seed 1

What each process does is in `roles.py`. Everything random is drawn from the seed; in which order the processes get to
it is the machine's.
"""

import argparse
import contextlib
import logging
import pathlib
import random
import shutil
import tempfile
import time
from collections import Counter
from typing import Any, Final

import msgspec

import journal
from journal import Committed, EffectEvent, EffectRecord
from tests.crash.roles import Field, live
from tests.crash.support.processes import KILLED, Process, Processes, Server

TEAM: Final = {"worker": 2, "tasks": 2, "walker": 2, "reader": 2}
"""How many processes of each role there are at any time."""

PAUSE_SECONDS_MAX: Final = 0.3
"""Between two deaths or stops; drawn up to here."""

STOP_SECONDS_MAX: Final = 3.0
"""How long a process stands still; drawn up to here. Longer than anybody waits for it."""

STOP_SHARE: Final = 0.4
"""How many of the victims are stopped rather than killed."""

FILE_FACTOR_MAX: Final = 3
FILE_SLACK_BYTES: Final = 256 * 1024 * 1024
"""The file may have so many times the bytes of a compacted copy of it, and some more: while a reader stands still for
seconds inside a transaction, or is dead for less than one, no page can be used again."""


class Member:
    """One of the team: a process, and its successors."""

    def __init__(self, processes: Processes, field: Field, role: str, slot: str) -> None:
        self._processes = processes
        self._field = field
        self._role = role
        self._slot = slot
        self._life = 0
        self._process: Process[None] | None = None
        self.resumes_at: float | None = None

    def start(self, seed: int) -> None:
        self._life += 1
        name = f"{self._slot} {self._life}"
        self._process = self._processes.start(live, self._field, self._role, name, seed)

    def check(self) -> None:
        """Raise what the process raised, where it ended by itself."""
        assert self._process is not None
        if self._process.is_over_within(0):
            self._process.value()
            raise AssertionError(f"{self._slot} ended before it was over")

    def kill(self) -> None:
        assert self._process is not None
        self.resumes_at = None
        self.check()
        assert self._process.kill() == KILLED
        self._processes.forget(self._process)

    def stop(self, until: float) -> None:
        assert self._process is not None
        self._process.stop()
        self.resumes_at = until

    def go_on(self) -> None:
        assert self._process is not None
        self.resumes_at = None
        self._process.go_on()

    def finish(self) -> None:
        """Wait for the end, and raise what the process raised."""
        assert self._process is not None
        if self.resumes_at is not None:
            self.go_on()
        self._process.value()


def disturb(processes: Processes, field: Field, seconds: float, seed: int) -> Counter[str]:
    """Let the team work for so long, and kill and stop its members; how often each was done."""
    draw = random.Random(seed)
    done: Counter[str] = Counter()
    team = [Member(processes, field, role, f"{role}-{n}") for role, count in TEAM.items() for n in range(count)]
    for member in team:
        member.start(draw.randrange(1 << 30))
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        for member in team:
            member.check()
            if member.resumes_at is not None and member.resumes_at <= now:
                member.go_on()
        victim = draw.choice(team)
        if draw.random() >= STOP_SHARE:
            done["killed while it stood still" if victim.resumes_at else "killed"] += 1
            victim.kill()
            victim.start(draw.randrange(1 << 30))
        elif victim.resumes_at is None:
            done["stopped"] += 1
            victim.stop(now + draw.uniform(0, STOP_SECONDS_MAX))
        time.sleep(draw.uniform(0, PAUSE_SECONDS_MAX))
    field.end()
    for member in team:
        if member.resumes_at is not None:
            member.go_on()
    for member in team:
        member.finish()
    return done


class Found(msgspec.Struct, frozen=True):
    """What a fresh process finds when everybody has gone."""

    walk: dict[str, int]
    stopped: str | None
    head: int
    operations: list[Committed]
    records: dict[str, EffectRecord]
    events: list[EffectEvent]
    findings: list[str]
    file_bytes: int
    live_bytes: int


def look(field: Field) -> Found:
    """Recover once more, from the beginning, and read everything."""
    with field.open() as j:
        settled = j.recover(intents=field.intents)
        records = {repr(record.key): record for record in j.effects()}
        return Found(
            walk={"ran": settled.ran, "reconciled": settled.reconciled, "reused": settled.reused},
            stopped=str(settled.stopped) if settled.stopped else None,
            head=int(j.head()),
            operations=list(j.read()),
            records=records,
            events=[event for record in records.values() for event in j.history(record.key)],
            findings=[repr(finding) for finding in j.verify()],
            file_bytes=j.stats().file_bytes,
            live_bytes=compacted_bytes(j, field.root / "compacted"),
        )


def compacted_bytes(j: journal.Journal, directory: pathlib.Path) -> int:
    """How large the file is without the pages that nobody uses."""
    directory.mkdir()
    lmdb_env: Any = j._store._environment._env
    lmdb_env.copy(str(directory), compact=True)
    size = (directory / "data.mdb").stat().st_size
    shutil.rmtree(directory)
    return size


def check(field: Field, found: Found) -> None:
    """Everything that must hold."""
    assert found.findings == []
    assert found.stopped is None
    check_log(found)
    check_effects(field, found)
    check_notes(field, found)
    check_readers(field, found)
    assert found.file_bytes <= FILE_FACTOR_MAX * found.live_bytes + FILE_SLACK_BYTES, "the file grew without bound"


def check_log(found: Found) -> None:
    """Positions and sequences have no gap."""
    positions = sorted([one.position for one in found.operations] + [event.position for event in found.events])
    assert positions == list(range(1, found.head + 1))
    sequences: dict[str, list[int]] = {}
    for committed in found.operations:
        sequences.setdefault(committed.stream, []).append(committed.sequence)
    for stream, numbers in sequences.items():
        assert numbers == list(range(1, len(numbers) + 1)), stream


def check_effects(field: Field, found: Found) -> None:
    """Every operation's effect is settled, and by the recipient's own record none that is at most once came twice."""
    deliveries = field.deliveries()
    for committed in found.operations:
        key = repr((committed.stream, committed.op_id, "deliver"))
        record, messages = found.records[key], deliveries.pop(key, [])
        if record.phase == "accepted":
            assert record.proof in messages, key
        else:
            assert (record.phase, messages) == ("uncertain", []), key
        if committed.operation.kind == "once":
            assert len(messages) <= 1, f"{key} was delivered {len(messages)} times"
    assert deliveries == {}, "delivered without an operation"


def check_notes(field: Field, found: Found) -> None:
    """What was acknowledged is there as it was acknowledged, and what was refused is not."""
    operations = {committed.op_id: committed for committed in found.operations}
    for note in field.all_notes():
        if note.call == "append":
            committed = operations[note.name]
            assert [committed.stream, committed.sequence, committed.position] == note.value
        elif note.call == "settle":
            record = found.records[note.name]
            assert (record.phase, record.proof) == (
                ("accepted", note.value) if note.value is not None else ("uncertain", None)
            )
        elif note.call.startswith("refused") and note.name:
            assert note.name not in operations, f"{note.name} was refused, and is there"


def check_readers(field: Field, found: Found) -> None:
    """Each reader, through all its lives, saw every operation once and in order, as far as it came."""
    positions = [committed.position for committed in found.operations]
    for number in range(TEAM["reader"]):
        seen = [position for (position,) in field.notes(f"reader-{number}").read()]
        assert seen == positions[: len(seen)], f"reader {number}"
        assert seen, f"reader {number} saw nothing"


def summary(field: Field, found: Found, done: Counter[str], seconds: float, seed: int) -> str:
    """What happened, for people."""
    notes = Counter(note.call for note in field.all_notes())
    endings = Counter(f"{record.phase} via {record.via}" for record in found.records.values())
    phases = Counter(event.phase for event in found.events)
    seen = [sum(1 for _ in field.notes(f"reader-{number}").read()) for number in range(TEAM["reader"])]
    lines = {
        "ran": f"{seconds:.0f} s, seed {seed}, team {TEAM}",
        "done to it": dict(done),
        "head": found.head,
        "operations": len(found.operations),
        "effects": dict(endings),
        "events": dict(phases),
        "answers noted": dict(sorted(notes.items())),
        "last recovery": found.walk,
        "seen by readers": seen,
        "file": f"{found.file_bytes / 1e6:.1f} MB, compacted {found.live_bytes / 1e6:.1f} MB, "
        f"bound {(FILE_FACTOR_MAX * found.live_bytes + FILE_SLACK_BYTES) / 1e6:.1f} MB",
    }
    return "\n".join(f"{name:>16}: {value}" for name, value in lines.items())


def soak(processes: Processes, directory: pathlib.Path, seconds: float, seed: int) -> str:
    """Disturb, look and check; a summary, which is printed before anything is checked."""
    field = Field(str(directory))
    field.prepare()
    done = disturb(processes, field, seconds, seed)
    found = look(field)
    text = summary(field, found, done, seconds, seed)
    print(text)
    check(field, found)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="an empty one, which is kept")
    options = parser.parse_args()
    logging.getLogger("journal").addHandler(logging.NullHandler())  # what goes wrong here goes wrong on purpose
    with contextlib.ExitStack() as stack:
        directory = options.directory or stack.enter_context(tempfile.TemporaryDirectory())
        soak(stack.enter_context(Server()), pathlib.Path(directory), options.seconds, options.seed)
    print("everything holds")


if __name__ == "__main__":
    main()
