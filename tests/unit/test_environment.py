"""`journal/_storage/environment.py`: the gate, transactions, and the growth of the map."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from journal._storage import environment
from journal._storage.environment import Environment, Gate, create_data_file
from journal.errors import JournalBusyError, JournalClosedError, JournalFullError
from journal.options import MAP_BYTES_MIN, MAP_RESERVE_BYTES, SWEEP_SECONDS
from tests.unit.support import PATIENCE, Boom, InterruptAt, InThread, lines_interrupted, raising, until

KEY: Final = b"\x01key"
PAGE: Final = 4_096


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a data file."""
    create_data_file(str(tmp_path), "data.mdb", {KEY: b"value"})
    return tmp_path


@pytest.fixture
def opened(directory: Path) -> Iterator[Callable[..., Environment]]:
    """Opens the data file, once."""
    found: list[Environment] = []

    def open_it(*, map_size: int = MAP_BYTES_MIN, max_size: int | None = None, readonly: bool = False) -> Environment:
        found.append(Environment(str(directory), readonly=readonly, map_size=map_size, max_size=max_size))
        return found[-1]

    yield open_it
    for env in found:
        env.close()


def put(env: Environment, value: bytes = b"value", key: bytes = KEY) -> None:
    """Write a row."""

    def body(txn: lmdb.Transaction) -> None:
        txn.put(key, value)
        txn.commit()

    env.write(body)


def get(env: Environment, key: bytes = KEY) -> bytes | None:
    """Read a row."""

    def body(txn: lmdb.Transaction) -> bytes | None:
        found: Any = txn.get(key)
        return None if found is None else bytes(found)

    return env.read(body)


# The gate


def test_threads_pass_side_by_side() -> None:
    """Nobody waits for another one's transaction."""
    gate = Gate()
    inside = threading.Barrier(3)

    def passing() -> None:
        with gate.lock():
            inside.wait(PATIENCE)

    for call in [InThread(passing) for _ in range(3)]:
        call.result()


def test_a_thread_may_come_in_again() -> None:
    """A look within a look."""
    gate = Gate()

    with gate.lock(), gate.lock():
        assert gate.lock() is gate.lock()


def test_who_wants_to_be_alone_waits_until_everybody_is_out() -> None:
    """And keeps them out meanwhile, new threads too."""
    gate = Gate()
    order: list[str] = []
    is_in, may_leave = threading.Event(), threading.Event()

    def passing() -> None:
        with gate.lock():
            is_in.set()
            assert may_leave.wait(PATIENCE)
            order.append("out")

    def alone() -> None:
        order.append("alone")
        newcomer.append(InThread(late))
        order.append("still alone")

    def late() -> None:
        with gate.lock():
            order.append("late")

    newcomer: list[InThread[None]] = []
    first = InThread(passing)
    assert is_in.wait(PATIENCE)
    second = InThread(lambda: gate.alone(alone))
    may_leave.set()
    first.result()
    second.result()
    newcomer[0].result()

    assert order == ["out", "alone", "still alone", "late"]


@pytest.mark.parametrize("error", [Boom(), KeyboardInterrupt()])
def test_gate_is_open_again_whatever_was_raised(error: BaseException) -> None:
    """It goes on as it is."""
    gate = Gate()
    with gate.lock():
        pass

    with pytest.raises(type(error)):
        gate.alone(raising(error))

    InThread(lambda: gate.alone(lambda: None)).result()


def test_locks_are_given_back_after_an_interrupt_in_the_midst_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more: it can be done again."""
    gate = Gate()
    real = gate._give_back_others
    interrupts = [KeyboardInterrupt()]

    def give_back() -> None:
        if interrupts:
            raise interrupts.pop()
        real()

    monkeypatch.setattr(gate, "_give_back_others", give_back)
    with gate.lock():
        pass

    with pytest.raises(KeyboardInterrupt):
        gate.alone(lambda: None)

    InThread(lambda: gate.alone(lambda: None)).result()


def test_several_may_want_to_be_alone_at_once() -> None:
    """Each is, and the gate is open afterwards: every thread meets a map that grew."""
    gate = Gate()
    alone: list[int] = []
    most: list[int] = []
    start = threading.Barrier(4)

    def body() -> None:
        alone.append(1)
        most.append(len(alone))
        alone.pop()

    def wanting() -> None:
        start.wait(PATIENCE)
        for _ in range(300):
            gate.alone(body)
            with gate.lock():
                assert not alone

    for call in [InThread(wanting) for _ in range(4)]:
        call.result()

    assert set(most) == {1}
    assert len(most) == 4 * 300
    InThread(lambda: gate.alone(body)).result()


def test_shut_gate_lets_out_and_nobody_in() -> None:
    """Those inside may look again; who comes new waits."""
    gate = Gate()
    order: list[str] = []
    is_in, is_shut, may_come = threading.Event(), threading.Event(), threading.Event()

    def inside() -> None:
        with gate.lock():
            is_in.set()
            assert is_shut.wait(PATIENCE)
            with gate.lock():
                order.append("inside")

    def newcomer() -> None:
        with gate.lock():
            pass
        may_come.set()
        assert is_shut.wait(PATIENCE)
        with gate.lock():
            order.append("newcomer")

    def body() -> None:
        is_shut.set()
        calls[0].result()
        with gate.lock():
            order.append("shut")

    calls = [InThread(inside), InThread(newcomer)]
    assert is_in.wait(PATIENCE)
    assert may_come.wait(PATIENCE)
    with gate.lock():
        gate.shut(body)
    calls[1].result()

    assert order == ["inside", "shut", "newcomer"]


def test_gate_is_shut_beside_one_who_wants_to_be_alone() -> None:
    """He waits until who had it shut is out, and neither waits for the other."""
    gate = Gate()
    order: list[str] = []

    with gate.lock():
        alone = InThread(lambda: gate.alone(lambda: order.append("alone")))
        until(lambda: gate._is_wanted)
        gate.shut(lambda: order.append("shut"))
    alone.result()

    assert order == ["shut", "alone"]


@pytest.mark.parametrize("error", [Boom(), KeyboardInterrupt()])
def test_gate_is_not_shut_any_more_whatever_was_raised(error: BaseException) -> None:
    """It goes on as it is."""
    gate = Gate()

    with pytest.raises(type(error)), gate.lock():
        gate.shut(raising(error))

    assert not gate._is_shut


def test_locks_of_threads_that_ended_are_forgotten() -> None:
    """A server makes threads without end."""
    gate = Gate()

    def passing() -> None:
        with gate.lock():
            pass

    for _ in range(10):
        InThread(passing).result()
    until(lambda: len(gate._locks) <= 1)


def test_claim_is_for_what_comes_in_pieces() -> None:
    """A fork: before and after are two calls."""
    gate = Gate()
    with gate.lock():
        pass

    gate.claim()
    waiting = InThread(lambda: gate.alone(lambda: None))
    assert waiting._thread.is_alive()
    gate.give_back()

    waiting.result()


def alone_interrupted(interrupt: InterruptAt) -> None:
    """Somebody who wants to be alone and is interrupted, beside another thread."""
    gate = Gate()
    may_end = threading.Event()

    def other() -> None:
        with gate.lock():
            pass
        assert may_end.wait(PATIENCE)
        with gate.lock():
            pass

    beside = InThread(other)
    until(lambda: len(gate._locks) == 1)
    with interrupt:
        try:
            with gate.lock():
                gate.shut(lambda: None)
            gate.alone(lambda: None)
        except KeyboardInterrupt:
            pass
    may_end.set()
    beside.result()
    InThread(lambda: gate.alone(lambda: None)).result()
    with gate.lock():
        pass


def test_being_alone_may_be_interrupted_before_any_line() -> None:
    """Nobody is kept out afterwards."""
    assert lines_interrupted(environment, alone_interrupted) > 10


# Transactions


def test_write_is_read(opened: Callable[..., Environment]) -> None:
    """What was committed."""
    env = opened()

    put(env, b"other")

    assert get(env) == b"other"


def test_what_is_not_committed_is_dropped(opened: Callable[..., Environment]) -> None:
    """Whether the body returns or raises."""
    env = opened()

    def body(txn: lmdb.Transaction) -> str:
        txn.put(KEY, b"never")
        return "answer"

    def failing(txn: lmdb.Transaction) -> None:
        txn.put(KEY, b"never")
        raise Boom

    assert env.write(body) == "answer"
    with pytest.raises(Boom):
        env.write(failing)
    assert get(env) == b"value"


def test_writes_are_dropped_while_threads_read_on_and_on(opened: Callable[..., Environment]) -> None:
    """LMDB's binding drops a write transaction only in a moment in which no other thread is in a call; it gets one."""
    env = opened()
    is_over = threading.Event()

    def body(txn: lmdb.Transaction) -> None:
        txn.put(KEY, b"never")

    def failing(txn: lmdb.Transaction) -> None:
        body(txn)
        raise Boom

    def reading() -> None:
        while not is_over.is_set():
            assert get(env) == b"value"

    readers = [InThread(reading) for _ in range(4)]
    for _ in range(20):
        env.write(body)
        with pytest.raises(Boom):
            env.write(failing)
    is_over.set()

    for reader in readers:
        reader.result()


def test_readonly_environment_reads(opened: Callable[..., Environment]) -> None:
    """And does not write."""
    env = opened(readonly=True)

    assert get(env) == b"value"
    with pytest.raises(lmdb.Error):
        put(env)


def test_closed_environment_refuses(opened: Callable[..., Environment]) -> None:
    """Closing again is fine."""
    env = opened()
    env.close()
    env.close()

    for use in (lambda: get(env), lambda: put(env), env.sizes, lambda: env.grow(settles=True)):
        with pytest.raises(JournalClosedError):
            use()


def test_closing_waits_for_transactions(opened: Callable[..., Environment]) -> None:
    """LMDB would take the map away under them."""
    env = opened()
    is_in, may_end = threading.Event(), threading.Event()

    def body(txn: lmdb.Transaction) -> bytes | None:
        is_in.set()
        assert may_end.wait(PATIENCE)
        found: Any = txn.get(KEY)
        return bytes(found)

    reading = InThread(lambda: env.read(body))
    assert is_in.wait(PATIENCE)
    closing = InThread(env.close)
    may_end.set()

    assert reading.result() == b"value"
    closing.result()


class Stubborn:
    """An environment of LMDB's that raises at its first begins, and notes what it is asked."""

    def __init__(self, env: Any, *errors: Exception, dead_readers: int = 0) -> None:
        self._env = env
        self._errors = list(errors)
        self._dead_readers = dead_readers
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *, write: bool) -> Any:
        self.asked.append("begin")
        if self._errors:
            raise self._errors.pop(0)
        return self._env.begin(write=write)

    def set_mapsize(self, size: int) -> None:
        self.asked.append(f"set_mapsize {size}")

    def reader_check(self) -> int:
        self.asked.append("reader_check")
        return self._dead_readers


def stubborn(env: Environment, *errors: Exception, dead_readers: int = 0) -> Stubborn:
    """Let LMDB refuse some begins."""
    made: Any = Stubborn(env._env, *errors, dead_readers=dead_readers)
    env._env = made
    found: Stubborn = made
    return found


@pytest.mark.parametrize("use", [get, put])
def test_map_that_another_process_made_larger_is_adopted(
    opened: Callable[..., Environment], use: Callable[[Environment], Any]
) -> None:
    """Unseen by the caller, as often as it happens."""
    env = opened()
    lmdb_env = stubborn(env, lmdb.MapResizedError("grown"), lmdb.MapResizedError("again"))

    use(env)

    assert lmdb_env.asked == ["begin", "set_mapsize 0", "begin", "set_mapsize 0", "begin"]


@pytest.mark.parametrize("use", [get, put])
def test_slot_that_was_taken_away_is_done_without(
    opened: Callable[..., Environment], use: Callable[[Environment], Any]
) -> None:
    """The transaction begins with another one."""
    env = opened()
    lmdb_env = stubborn(env, lmdb.BadRslotError("taken"))

    use(env)

    assert lmdb_env.asked == ["begin", "begin"]


@pytest.mark.parametrize("dead_readers, pauses", [(1, 0), (0, 1)])
def test_full_reader_table_is_swept(
    opened: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch, dead_readers: int, pauses: int
) -> None:
    """Slots of dead processes are freed; where there are none, the living are waited for a little."""
    slept: list[float] = []
    monkeypatch.setattr("journal._storage.environment.time.sleep", slept.append)
    env = opened()
    lmdb_env = stubborn(env, lmdb.ReadersFullError("full"), dead_readers=dead_readers)

    assert get(env) == b"value"

    assert lmdb_env.asked == ["begin", "reader_check", "begin"]
    assert len(slept) == pauses


def test_writer_sweeps_once_in_a_while(opened: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that commits for long frees what dead readers keep, without anybody opening; readers do not."""
    now = [0.0]
    sweeps: list[float] = []
    monkeypatch.setattr("journal._storage.environment.time.monotonic", lambda: now[0])
    env = opened()
    lmdb_env = stubborn(env)

    for now[0] in (0.1, SWEEP_SECONDS - 0.1, SWEEP_SECONDS, SWEEP_SECONDS + 0.1, 2.5 * SWEEP_SECONDS):
        get(env)
        put(env)
        if "reader_check" in lmdb_env.asked:
            sweeps.append(now[0])
        lmdb_env.asked.clear()

    assert sweeps == [SWEEP_SECONDS, 2.5 * SWEEP_SECONDS]


def test_slot_is_kept_for_the_next_read(opened: Callable[..., Environment]) -> None:
    """To take one is to hold a lock of all processes, and who is stopped just then would stop them."""
    env = opened()
    get(env)
    before = own_slots(env)

    get(env)
    put(env)
    get(env)

    assert own_slots(env) == before == 1


def own_slots(env: Environment) -> int:
    """How many slots of the table this process has."""
    lines = env._require().readers().splitlines()[1:]
    return sum(line.split()[0] == str(os.getpid()) for line in lines)


def test_reader_table_that_stays_full_is_told(
    opened: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bounded number of tries."""
    monkeypatch.setattr("journal._storage.environment.time.sleep", lambda _: None)
    env = opened()
    stubborn(env, *[lmdb.ReadersFullError("full")] * 1_000)

    with pytest.raises(JournalBusyError) as caught:
        get(env)

    assert (caught.value.path, caught.value.pid) == (env.directory, None)
    assert "reader slots" in caught.value.reason


# The map


def fill(env: Environment) -> None:
    """Write until the map is full."""
    with pytest.raises(lmdb.MapFullError):
        for number in range(10_000):
            put(env, b"v" * 3 * PAGE, b"\x02%d" % number)


def map_bytes(env: Environment) -> int:
    """The size of the map."""
    return env.sizes()[0]


def test_map_grows_by_itself_without_a_ceiling(opened: Callable[..., Environment]) -> None:
    """Twice as large each time."""
    env = opened()
    fill(env)

    env.grow(settles=False)
    assert map_bytes(env) == 2 * MAP_BYTES_MIN
    put(env, b"v" * 10 * PAGE)
    env.grow(settles=False)

    assert map_bytes(env) == 4 * MAP_BYTES_MIN


def test_map_begins_within_its_ceiling(opened: Callable[..., Environment]) -> None:
    """Less the reserve; a size is rounded up to whole pages."""
    env = opened(map_size=2**30, max_size=2**21)

    assert map_bytes(env) == 2**21 - MAP_RESERVE_BYTES


def test_map_grows_up_to_its_ceiling_less_the_reserve(opened: Callable[..., Environment]) -> None:
    """Then it is full for everything but outcomes."""
    env = opened(map_size=MAP_BYTES_MIN, max_size=2 * MAP_BYTES_MIN)

    env.grow(settles=False)
    assert map_bytes(env) == 2 * MAP_BYTES_MIN - MAP_RESERVE_BYTES
    with pytest.raises(JournalFullError) as caught:
        env.grow(settles=False)

    assert caught.value.path == env.directory
    assert f"max_size={2 * MAP_BYTES_MIN}" in caught.value.reason


def test_reserve_is_for_outcomes(opened: Callable[..., Environment]) -> None:
    """They may use the map up to its ceiling and no further; afterwards it is as small as before."""
    env = opened(map_size=MAP_BYTES_MIN, max_size=MAP_BYTES_MIN + MAP_RESERVE_BYTES)
    fill(env)
    with pytest.raises(JournalFullError):
        env.grow(settles=False)

    env.grow(settles=True)
    put(env, b"v" * 3 * PAGE, b"\x03outcome")
    assert map_bytes(env) == MAP_BYTES_MIN + MAP_RESERVE_BYTES
    with pytest.raises(JournalFullError):
        env.grow(settles=True)
    env.leave_reserve()

    assert get(env, b"\x03outcome") is not None
    with pytest.raises(lmdb.MapFullError):
        put(env, b"v" * 3 * PAGE, b"\x03another")
    env.grow(settles=True)
    put(env, b"v" * 3 * PAGE, b"\x03another")


def test_leaving_a_reserve_that_was_not_used_changes_nothing(opened: Callable[..., Environment]) -> None:
    """With a ceiling and without."""
    for max_size in (None, 4 * MAP_BYTES_MIN):
        env = opened(max_size=max_size)
        before = map_bytes(env)

        env.leave_reserve()

        assert map_bytes(env) == before
        env.close()


def test_process_without_addresses_for_a_larger_map_is_told(
    opened: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before LMDB drops the map that it has: the journal stays readable."""
    env = opened()
    monkeypatch.setattr("journal._storage.environment.mmap.mmap", raising(OSError("Cannot allocate memory")))

    with pytest.raises(JournalFullError, match=f"no {MAP_BYTES_MIN} bytes of address space left"):
        env.grow(settles=True)

    assert (get(env), map_bytes(env)) == (b"value", MAP_BYTES_MIN)


def test_map_that_lmdb_cannot_make_larger_is_told(opened: Callable[..., Environment]) -> None:
    """Whatever it says."""
    env = opened()
    made: Any = stubborn(env)
    made.set_mapsize = raising(lmdb.MemoryError("mdb_env_set_mapsize"))

    with pytest.raises(JournalFullError, match="its map cannot grow"):
        env.grow(settles=True)


@pytest.mark.parametrize("error", [lmdb.MemoryError("no room"), MemoryError("no room")])
def test_process_without_so_many_addresses_begins_smaller(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Half as large each time, until it fits."""
    tried: list[int] = []
    real = environment._open

    def limited(path: str, *, readonly: bool, map_bytes: int) -> lmdb.Environment:
        tried.append(map_bytes)
        if map_bytes > 2 * MAP_BYTES_MIN:
            raise error
        return real(path, readonly=readonly, map_bytes=map_bytes)

    monkeypatch.setattr(environment, "_open", limited)

    env = Environment(str(directory), readonly=False, map_size=8 * MAP_BYTES_MIN, max_size=None)

    assert tried == [8 * MAP_BYTES_MIN, 4 * MAP_BYTES_MIN, 2 * MAP_BYTES_MIN]
    assert map_bytes(env) == 2 * MAP_BYTES_MIN
    env.close()


def test_process_without_any_addresses_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a smallest map."""
    monkeypatch.setattr(environment, "_open", raising(lmdb.MemoryError("no room")))

    with pytest.raises(lmdb.MemoryError):
        Environment(str(directory), readonly=False, map_size=MAP_BYTES_MIN, max_size=None)


def test_settings_never_weaken_durability(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag is passed on explicitly: what LMDB's defaults are, or a variable of the environment, changes nothing."""
    passed: dict[str, Any] = {}
    real = lmdb.open

    def noting(path: str, **options: Any) -> lmdb.Environment:
        passed.update(options)
        return real(path, **options)

    monkeypatch.setattr(lmdb, "open", noting)
    monkeypatch.setenv("LMDB_DEFAULT_LIB_VERSION", "1")
    Environment(str(directory), readonly=False, map_size=MAP_BYTES_MIN + 1, max_size=None).close()

    assert {name: passed[name] for name in ("sync", "metasync", "writemap", "map_async", "lock", "lib_version")} == {
        "sync": True,
        "metasync": True,
        "writemap": False,
        "map_async": False,
        "lock": True,
        "lib_version": 0,
    }
    assert passed["map_size"] == MAP_BYTES_MIN + PAGE
    assert passed["create"] is False


def test_sizes_are_of_the_map_and_of_the_pages(opened: Callable[..., Environment]) -> None:
    """In bytes."""
    env = opened()
    before = env.sizes()[1]

    put(env, b"v" * 10 * PAGE)

    assert env.sizes()[1] >= before + 10 * PAGE


def test_new_data_file_is_private_and_holds_its_rows(tmp_path: Path) -> None:
    """Under the name that it is given, whatever the umask says."""
    create_data_file(str(tmp_path), "data.mdb.new", {b"\x01a": b"1", b"\x01b": b"2"})

    path = tmp_path / "data.mdb.new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
        assert dict(txn.cursor()) == {b"\x01a": b"1", b"\x01b": b"2"}
