"""The state is the fold of the log, whatever was remembered, kept or folded anew, and by whom."""

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import journal
from journal import CorruptRecordError, InvalidOperationError, Journal, Reducer
from journal._core import states as states_module
from journal._core.states import StateAt
from journal._states import States

STREAMS = ("s", "t")
REFUSED = 7
"""What `apply` of no version takes."""


class Tally(msgspec.Struct):
    """A state in which order shows."""

    last: dict[str, int] = {}
    seen: list[int] = []


def reducer(version: int, every: int) -> Reducer:
    """Each version comes to another state."""

    def apply(tally: Tally, number: int) -> Tally:
        if number == REFUSED:
            raise ValueError("not this one")
        tally.last.pop(str(number % 3), None)
        tally.last[str(number % 3)] = number * version
        tally.seen.append(number)
        return tally

    return Reducer(Tally, apply, Tally, every, version)


def fold(numbers: list[int], version: int) -> Tally:
    """The slow and obvious twin."""
    one = reducer(version, 1)
    tally = Tally()
    for number in numbers:
        tally = one.apply(tally, number)
    return tally


class Twin:
    """A journal by one handle after the other, and the numbers that its streams must hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers: dict[str, list[int]] = {stream: [] for stream in STREAMS}
        self.compacted_by: dict[str, int] = {}
        self.floors: dict[str, int] = {}
        self.count = 0
        self.handles: dict[int, dict[str, StateAt]] = {}
        """What each of the processes that stand still remembers."""
        self.is_open = False
        self.start(0, 1, 100, 1_000)

    def start(self, process: int, version: int, every: int, remembered: int) -> None:
        """Another process is the one that goes on, with what it remembers, or a new one."""
        self.stop()
        self.process, self.version = process, version
        self.j: Any = journal.open(self.path, operation=int, state=reducer(version, every))
        self.is_open = True
        cache = States(bytes_max=remembered, count_max=100)
        cache.put_all(self.handles.get(process * 10 + version, {}))
        self.j._handle.rules.states.__dict__.update(cache.__dict__)

    def stop(self) -> None:
        if self.is_open:
            self.handles[self.process * 10 + self.version] = dict(self.j._handle.rules.states._by_stream)
            self.j.close()
            self.is_open = False

    def append(self, stream: str, numbers: list[int]) -> None:
        pairs = []
        for number in numbers:
            self.count += 1
            pairs.append((str(self.count), number))
        try:
            self.j.append_all(stream, pairs)
        except InvalidOperationError:
            assert REFUSED in numbers
        except CorruptRecordError:
            self.check_may_be_lost(stream)
        else:
            assert REFUSED not in numbers
            self.numbers[stream] += numbers

    def append_beside(self, stream: str, numbers: list[int]) -> None:
        """Each in a thread of its own: their order is the log's."""
        j: Journal = self.j
        first = self.count
        self.count += len(numbers)

        def work(index: int, number: int) -> None:
            try:
                j.append(stream, number, op_id=str(first + index))
            except (InvalidOperationError, CorruptRecordError) as error:
                refusals.append(error)

        refusals: list[Exception] = []
        threads = [threading.Thread(target=work, args=pair) for pair in enumerate(numbers, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(isinstance(refusal, CorruptRecordError) for refusal in refusals):
            self.check_may_be_lost(stream)
        else:
            assert len(refusals) == numbers.count(REFUSED)
        before = len(self.numbers[stream])
        after = j.read(stream, after=self.floors.get(stream, 0))
        self.numbers[stream] += [one.operation for one in after if one.sequence > before]

    def load(self, stream: str) -> None:
        numbers = self.numbers[stream]
        try:
            loaded = self.j.load(stream)
        except CorruptRecordError:
            self.check_may_be_lost(stream)
            return
        assert loaded.state == fold(numbers, self.version)
        assert list(loaded.state.last) == list(fold(numbers, self.version).last)
        assert loaded.sequence == len(numbers)
        loaded.state.seen.append(1_000_000)

    def compact(self, stream: str, back: int) -> None:
        """Through the last record of the log, or one a little before."""
        through = self.j.head() - back
        if through < 1 or stream not in self.j.streams():
            return
        before = self.j.floor(stream)
        try:
            floor = self.j.compact(stream, through)
        except CorruptRecordError:
            self.check_may_be_lost(stream)
            return
        if floor > before:
            self.floors[stream] = floor
            if self.numbers[stream]:
                self.compacted_by[stream] = self.version

    def reset(self, stream: str) -> None:
        if stream not in self.j.streams():
            return
        self.j.reset(stream)
        self.numbers[stream] = []
        self.compacted_by.pop(stream, None)
        self.floors[stream] = self.j.head()

    def check_may_be_lost(self, stream: str) -> None:
        """Only another version that compacted may have taken what a state is made of."""
        assert self.compacted_by.get(stream, self.version) != self.version or self.is_overwritten(stream)

    def is_overwritten(self, stream: str) -> bool:
        """Whether another version's snapshot has taken the place of the one that a compaction left."""
        row = self.j._store.read(lambda view: view.snapshot(stream))
        return stream in self.compacted_by and row.version != self.version


streams = st.sampled_from(STREAMS)
some = st.lists(st.integers(0, 9), min_size=1, max_size=5)
actions = st.one_of(
    st.tuples(st.just("append"), streams, some),
    st.tuples(st.just("append"), streams, some),
    st.tuples(st.just("append_beside"), streams, some),
    st.tuples(st.just("load"), streams),
    st.tuples(
        st.just("start"),
        st.integers(0, 1),
        st.integers(1, 2),
        st.sampled_from([1, 2, 3, 7, 100]),
        st.sampled_from([0, 40, 1_000]),
    ),
    st.tuples(st.just("compact"), streams, st.integers(0, 4)),
    st.tuples(st.just("reset"), streams),
)

BUSY = [("start", 1, 1, 2, 1_000), ("append", "s", [3]), ("compact", "s", 0), ("start", 0, 1, 100, 1_000)]
"""Another process goes on and compacts, while the first one stands still and remembers."""


@pytest.mark.parametrize("page", [2, 256])
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(actions, max_size=25))
@example([("append", "s", [1, 2]), *BUSY, ("load", "s"), ("append", "s", [4])])
@example([("append", "s", [1, 2]), *BUSY, ("append", "s", [4])])
def test_state_is_the_fold_of_the_log(page: int, todo: list[tuple[Any, ...]]) -> None:
    """At any cadence, size of the cache, restart and compaction, among processes of two versions and many threads."""
    directory = Path(tempfile.mkdtemp(prefix="journal-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states_module, "PAGE_RECORDS", page)
        twin = Twin(directory / "journal")
        try:
            for name, *arguments in todo:
                getattr(twin, name)(*arguments)
            for stream in STREAMS:
                twin.load(stream)
        finally:
            twin.stop()
            shutil.rmtree(directory)
