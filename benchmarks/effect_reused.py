"""A settled effect is answered from its record 100,000 times a second, and nobody is asked."""

from concurrent.futures import ThreadPoolExecutor

import msgspec

from benchmarks._baselines import Bare, Record, accepted_record
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import THREAD_COUNT, effects, effects_in_threads, fresh_key, open_journal

RECORD = msgspec.msgpack.Decoder(Record)
DIGEST_BYTES = 20


def run(bench: Bench) -> list[Result]:
    """Reuse against a bare look-up, by the same keys, of a record that is decoded."""
    keys = [fresh_key() for _ in range(bench.pick(128, 5_000))]
    rows = [(key.encode(), accepted_record(key.encode())) for key in keys]
    bare = Bare(bench.path("bare"))
    bare.put_all(rows)

    def look_up() -> int:
        for key, _ in rows:
            bare.look_up(key, lambda value: RECORD.decode(memoryview(value)[:-DIGEST_BYTES]))
        return len(rows)

    with open_journal(bench.path("journal")) as j:
        with ThreadPoolExecutor(THREAD_COUNT) as pool:
            effects_in_threads(j, pool, keys)

        def reuse() -> int:
            effects(j, keys)
            return len(keys)

        rates = interleave({"bare look-up": Contestant(look_up), "reuse": Contestant(reuse)}, rounds=bench.pick(2, 30))
    bare.close()
    result = compared(rates, "reuse", "bare look-up", what="settled effects reused", unit="/s", target=100_000)
    return [msgspec.structs.replace(result, target_on="figure")]
