"""A byte flipped at each offset of a small journal's data file: what it answers, what `verify` says, and that it lives.

`python -m tests.crash.flips --all` tries every byte, which takes a while; `test_flips.py` tries some. Each worker has a
copy of the file and flips, opens, asks and mends, one offset after the other. One that dies or hangs (a crash of the
engine, an endless walk) ends at an offset that is known, and another one goes on after it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import mmap
import os
import pathlib
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import lmdb.verify

import journal
from journal import EffectFailedError, EffectUnresolvedError, Journal, JournalError, NotPerformed

MASKS: Final = (0x01, 0xFF)
"""What a byte is changed by: one bit, or all."""
SECONDS_MAX: Final = 20
"""How long one offset may take before it counts as a hang."""
PAGE_BYTES: Final = 4_096
WORKERS: Final = os.cpu_count() or 1
_U64: Final = struct.Struct("<Q")


class Fault(NamedTuple):
    """An offset at which something else happened than may."""

    offset: int
    mask: int
    what: str


class WasCalledError(Exception):
    """Code ran that must not run."""


class Silent:
    """A logger that says nothing."""

    def debug(self, event: str, **facts: Any) -> None: ...

    info = warning = error = debug


def open_one(path: pathlib.Path, **options: Any) -> Journal:
    """The journal at a path, with a clock that stands still and without logs."""
    return journal.open(path, clock=lambda: 1_700_000_000_000_000_000, map_size=2**20, logger=Silent(), **options)


def build(path: pathlib.Path, scale: int) -> None:
    """A journal with some of everything, on pages of every kind."""
    with open_one(path) as j:
        for index in range(12 * scale):
            j.append("orders", {"order": index, "text": "o" * 40}, op_id=f"order-{index}", actor="ann")
            j.effect(("mail", index), run=lambda index=index: f"m-{index}", reconcile=never)  # type: ignore[misc]  # mypy cannot infer a default
        j.append("large", "x" * 6_000, op_id="large")
        j.append_all("bulk", [(f"{index}", "y" * 300) for index in range(10)])
        for index in range(4):
            j.run_effect(f"charge-{index}", lambda: {"receipt": 1})
            j.step(("plan", index), lambda index=index: [index])  # type: ignore[misc]  # as above
        for key, error in (("open", ValueError("500")), ("refused", NotPerformed("no"))):
            with contextlib.suppress(EffectUnresolvedError, EffectFailedError):
                j.effect(key, run=raising(error), reconcile=never)
        j.save_cursor("reader", 4, stream="orders")


def never(*arguments: Any) -> Any:
    """What must not be called."""
    raise WasCalledError


def raising(error: Exception) -> Callable[[], Any]:
    """A function that raises."""

    def run() -> Any:
        raise error

    return run


def questions(j: Journal) -> dict[str, Callable[[], Iterable[Any]]]:
    """Everything that is asked of the journal, by name; what gives several answers gives them one after the other."""
    asked: dict[str, Callable[[], Iterable[Any]]] = {
        "head": lambda: [j.head()],
        "streams": j.streams,
        "read": j.read,
        "unfinished": j.unfinished,
        "effects": j.effects,
        "cursor": lambda: [j.cursor("reader")],
    }
    for stream in ("orders", "large", "bulk"):
        asked[f"read {stream}"] = lambda stream=stream: j.read(stream)  # type: ignore[misc]  # mypy cannot infer a default
    for key in [*(("mail", index) for index in (0, 5, 11)), "charge-0", "charge-3", "open", "refused"]:
        asked[f"record {key}"] = lambda key=key: [j.record(key)]  # type: ignore[misc]  # as above
        asked[f"history {key}"] = lambda key=key: j.history(key)  # type: ignore[misc]  # as above
    for index in (0, 5, 11):
        asked[f"effect {index}"] = lambda index=index: [j.effect(("mail", index), run=never, reconcile=never)]  # type: ignore[misc]  # as above
    asked["run_effect"] = lambda: [j.run_effect("charge-1", never)]
    asked["step"] = lambda: [j.step(("plan", 2), never)]
    return asked


def answer(ask: Callable[[], Iterable[Any]]) -> tuple[list[str], str]:
    """What a question is answered with before it ends, and the class of the error that it ends with, if any."""
    given: list[str] = []
    try:
        given.extend(map(repr, ask()))
    except WasCalledError:
        return given, "it was run again"
    except EffectUnresolvedError as error:
        return given, "it was run again" if isinstance(error.__cause__, WasCalledError) else type(error).__name__
    except JournalError as error:
        return given, type(error).__name__
    except Exception as error:
        return given, f"{type(error).__module__}.{type(error).__name__}: {error}"
    return given, ""


def answers(j: Journal) -> dict[str, tuple[list[str], str]]:
    """Every question with its answer."""
    return {name: answer(ask) for name, ask in questions(j).items()}


def unguarded(data: bytes, used: int) -> set[int]:
    """The offsets at which LMDB itself is led astray before anybody can look: `verify` finds them, reading does not.

    Numbers of pages, in the newest meta page and in branch pages, may lead to an older version of a page, sound in
    itself. The count of a page's rows may hide the last ones. Places of rows in a leaf, and the length of a row with pages of its own, may make LMDB's binding touch what
    lies past the end of the file (SIGBUS).
    """
    verifier: Any = lmdb.verify._Verifier  # its map of live pages is not public
    walked = verifier(io.BytesIO(data), len(data))
    assert walked.verify() == []
    meta = PAGE_BYTES * (walked.meta.txnid % 2)
    found = {*range(meta + 80, meta + 88), *range(meta + 128, meta + 136)}
    for page in range(2, used // PAGE_BYTES):
        start = page * PAGE_BYTES
        number, flags, lower = struct.unpack_from("<Q2xHH", data, start)
        if not walked.live[page] or number != page or not flags & 3:
            continue
        found.update((start + 12, start + 13))
        slots = range(start + 16, start + lower, 2)
        if flags & 2:
            found.update(range(slots.start, slots.stop))
        for slot in slots:
            node = start + struct.unpack_from("<H", data, slot)[0]
            is_large = struct.unpack_from("<H", data, node + 4)[0] & 1
            if flags & 1:
                found.update(range(node, node + 6))
            elif is_large:
                found.update(range(node, node + 4))
    return found


def fault_of(path: pathlib.Path, sound: dict[str, tuple[list[str], str]], *, is_guarded: bool) -> str:
    """What a damaged journal does that it may not; empty where it behaves."""
    try:
        j = open_one(path, create=False)
    except JournalError:
        return ""
    except Exception as error:
        return f"open raised {type(error).__module__}.{type(error).__name__}: {error}"
    try:
        if not is_guarded and next(j.verify(), None):
            return ""
        is_equal = True
        for name, (given, raised) in answers(j).items():
            expected = sound[name][0]
            if raised and not raised[0].isupper():
                return f"{name}: {raised}"
            if (given != expected[: len(given)]) if raised else (given != expected):
                return f"{name} gave {given} and not {expected}"
            is_equal = is_equal and not raised
        if not is_equal and next(j.verify(), None) is None:
            return "verify finds nothing, and not everything can be answered"
    finally:
        j.close()
    return ""


def work(
    data: bytes, used: int, sound: dict[str, tuple[list[str], str]], places: list[tuple[int, int]], shared: mmap.mmap
) -> None:
    """Try some places; where it stands is in shared memory, and every fault is written to the standard output."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=_memory()))
    try:
        file = folder / "data.mdb"
        open_to_chance = unguarded(data, used)
        for index, (offset, mask) in enumerate(places):
            _U64.pack_into(shared, 0, index + 1)
            signal.alarm(SECONDS_MAX)
            damaged = bytearray(data)
            damaged[offset] ^= mask
            for other in folder.iterdir():
                other.unlink()
            file.write_bytes(damaged)
            what = fault_of(folder, sound, is_guarded=offset not in open_to_chance)
            if what:
                os.write(1, f"{offset} {mask} {what[:300]}\n".encode())
        signal.alarm(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory() -> str | None:
    """A file system in memory, where there is one: nothing here has to survive."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def tried(
    data: bytes, used: int, sound: dict[str, tuple[list[str], str]], places: list[tuple[int, int]]
) -> Iterator[Fault]:
    """Try places in a child, and in another one from the next place on where it died."""
    shared = mmap.mmap(-1, _U64.size)
    while places:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(writing, 1)
            os.close(reading)
            with contextlib.suppress(BaseException):
                work(data, used, sound, places, shared)
                os._exit(0)
            os._exit(1)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                place, changed, what = line.rstrip("\n").split(" ", 2)
                yield Fault(int(place), int(changed), what)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = _U64.unpack_from(shared)[0]
        if status:
            name = signal.Signals(-status).name if status < 0 else f"exit {status}"
            offset, mask = places[done - 1]
            yield Fault(offset, mask, f"the process died: {name}")
        places = places[done:] if status else []


def made_journal(scale: int = 1) -> tuple[bytes, int, dict[str, tuple[list[str], str]]]:
    """The bytes of the journal that is damaged, how many of them are pages, and what it answers when it is sound."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "journal"
        build(path, scale)
        with open_one(path) as j:
            assert list(j.verify()) == []
            used = j.stats().used_bytes
            sound = answers(j)
        return (path / "data.mdb").read_bytes(), used, sound


def faults(
    places: list[tuple[int, int]], data: bytes, used: int, sound: dict[str, tuple[list[str], str]]
) -> list[Fault]:
    """Try places with as many workers as there are processors."""
    from concurrent.futures import ThreadPoolExecutor

    parts = [places[index::WORKERS] for index in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        found = pool.map(lambda part: list(tried(data, used, sound, part)), parts)
        return sorted(fault for part in found for fault in part)


def main(arguments: list[str]) -> int:
    """Try every byte, or every n-th; gives how many faults there were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="every byte")
    parser.add_argument("--step", type=int, default=101, help="else every n-th")
    parser.add_argument("--first", type=int, default=0, help="the offset to begin at")
    parser.add_argument("--last", type=int, default=None, help="the offset to end before")
    chosen = parser.parse_args(arguments)
    data, used, sound = made_journal()
    offsets = range(chosen.first, chosen.last or used, 1 if chosen.all else chosen.step)
    places = [(offset, mask) for offset in offsets for mask in MASKS]
    print(f"{len(places)} places of {used} bytes")
    found = faults(places, data, used, sound)
    for fault in found:
        print(
            f"byte {fault.offset} (page {fault.offset // PAGE_BYTES} + {fault.offset % PAGE_BYTES}) ^ {fault.mask:#04x}: {fault.what}"
        )
    print(f"{len(found)} faults")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
