"""What all scripts share: contestants that take turns, spreads, ratios, results and the machine.

Knows nothing of the journal. A *contestant* does one slice of work and says how many units it did; contestants take
turns, slice by slice, so that a noisy neighbour or a slow disk hits all of them alike, and a ratio is taken inside one
round and never between rounds.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

ROUNDS_SECONDS_MAX = 45.0
"""After this long no new round begins: on a busy disk fewer rounds say as much, and a run ends in minutes."""
ROUNDS_MIN = 5
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


def nothing() -> None:
    """Prepares nothing."""


class Contestant(NamedTuple):
    """`work` is timed and gives the number of units it did; `prepare` runs before it, outside the time."""

    work: Callable[[], int]
    prepare: Callable[[], None] = nothing


class Spread(msgspec.Struct, frozen=True):
    """Minimum, median and maximum of one figure over the rounds."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of `values`, which must not be empty."""
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        return f"{_number(self.median)} ({_number(self.minimum)} .. {_number(self.maximum)})"


class Rates(msgspec.Struct, frozen=True):
    """Units per second of every contestant, one figure a round, in the order of the rounds."""

    by_name: dict[str, list[float]]

    def per_second(self, name: str) -> Spread:
        """The spread of one contestant's rate."""
        return Spread.of(self.by_name[name])

    def ratio(self, name: str, base: str) -> Spread:
        """How many times as fast as `base` the contestant is, compared round by round."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.by_name[name], self.by_name[base], strict=True)])


def interleave(contestants: Mapping[str, Contestant], *, rounds: int, warmups: int = 1) -> Rates:
    """Lets every contestant do one slice a round; each round starts with another one.

    The first `warmups` rounds are thrown away. Where rounds take too long there are fewer, but not under `ROUNDS_MIN`.
    """
    names = list(contestants)
    deadline = time.monotonic() + ROUNDS_SECONDS_MAX
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmups + rounds):
        if turn >= warmups + ROUNDS_MIN and time.monotonic() > deadline:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            contestant = contestants[name]
            contestant.prepare()
            began = time.perf_counter()
            unit_count = contestant.work()
            elapsed = time.perf_counter() - began
            if turn >= warmups:
                rates[name].append(unit_count / elapsed)
    return Rates(rates)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one script.

    The target binds the median of the ratio where there is one and of the figure otherwise, unless `target_on` says
    which. A target on a ratio holds on any machine; one on a figure gives the size for the kind of machine that the
    targets were set on.
    """

    what: str
    unit: str
    figure: Spread
    base: str = ""
    ratio: Spread | None = None
    target: float | None = None
    target_on: str = "ratio"
    is_ceiling: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the target is kept; true where there is none."""
        if self.target is None:
            return True
        binding = self.ratio if self.ratio is not None and self.target_on == "ratio" else self.figure
        return binding.median <= self.target if self.is_ceiling else binding.median >= self.target

    def line(self, *, is_judged: bool) -> str:
        """The result as a line: figure and ratio as median (minimum .. maximum), then the target and the verdict."""
        parts = [f"  {self.what:48} {str(self.figure) + ' ' + self.unit:42}"]
        if self.ratio is not None:
            parts.append(f"{str(self.ratio) + ' x ' + self.base:44}")
        if self.target is not None and is_judged:
            binds = "ratio" if self.ratio is not None and self.target_on == "ratio" else self.unit
            bound = "at most" if self.is_ceiling else "at least"
            parts.append(f"{bound} {_number(self.target)} {binds}: {'reached' if self.is_reached else 'MISSED'}")
        return " ".join(parts).rstrip()


def compared(rates: Rates, name: str, base: str, *, what: str, unit: str, target: float | None = None) -> Result:
    """The result of one contestant against another, the target on the ratio."""
    figure, ratio = rates.per_second(name), rates.ratio(name, base)
    return Result(what=what, unit=unit, figure=figure, base=base, ratio=ratio, target=target)


class Bench(msgspec.Struct, frozen=True):
    """Where a script works and how much it does."""

    directory: Path
    is_quick: bool

    def pick(self, quick: int, full: int) -> int:
        """The size for this run: `quick` in a smoke test."""
        return quick if self.is_quick else full

    def path(self, name: str) -> Path:
        """A path of the script's own, where nothing is yet."""
        return self.directory / name


@contextmanager
def disk_directory() -> Iterator[Path]:
    """A fresh directory on a real disk, gone afterwards; `BENCHMARK_DIR` says where it is made.

    Raises:
        RuntimeError: it lies in memory, where a flush costs nothing and every ratio to a flush is wrong.
    """
    parent = Path(os.environ.get("BENCHMARK_DIR", "/var/tmp"))
    kind = file_system(parent)
    if kind in MEMORY_FILE_SYSTEMS:
        raise RuntimeError(f"{parent} is on {kind}; set BENCHMARK_DIR to a directory on a disk")
    with tempfile.TemporaryDirectory(prefix="journal-benchmark-", dir=parent) as name:
        yield Path(name)


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, as the kernel names it; "unknown" where it does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    target = path.resolve()
    best, kind = -1, "unknown"
    for line in lines:
        _, mount, mount_kind, *_ = line.split()
        if target.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), mount_kind
    return kind


def machine(directory: Path) -> str:
    """One line about where the figures come from: cores, system, interpreter, file system, and who else is at work."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()} {platform.machine()}, "
        f"{platform.python_implementation()} {platform.python_version()}, {file_system(directory)}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
