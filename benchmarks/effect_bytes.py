"""An accepted effect with a key and a proof of 40 bytes takes at most 450 bytes of the disk."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._measure import Bench, Result, Spread
from benchmarks._workload import THREAD_COUNT, effects_in_threads, fresh_key, open_journal

PART_COUNT = 5


def disk_bytes(directory: Path) -> int:
    """What the files of a journal take on the disk, in allocated blocks."""
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir() if path.is_file())


def run(bench: Bench) -> list[Result]:
    """The growth of the journal's files over several parts of the same size, and all there is at the end."""
    part = bench.pick(128, 10_000)
    path = bench.path("journal")
    growths = []
    with open_journal(path) as j, ThreadPoolExecutor(THREAD_COUNT) as pool:
        effects_in_threads(j, pool, [fresh_key() for _ in range(part)])
        before = disk_bytes(path)
        for _ in range(PART_COUNT):
            effects_in_threads(j, pool, [fresh_key() for _ in range(part)])
            after = disk_bytes(path)
            growths.append((after - before) / part)
            before = after
    total = disk_bytes(path) / (part * (PART_COUNT + 1))
    mean = sum(growths) / PART_COUNT
    return [
        Result(
            what=f"growth for each effect, {PART_COUNT} x {part:,}",
            unit="bytes",
            figure=Spread(min(growths), mean, max(growths)),
            target=450,
            is_ceiling=True,
        ),
        Result(what="all files, reserve too, for each effect", unit="bytes", figure=Spread.of([total])),
    ]
