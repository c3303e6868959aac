"""A service with threads that append and settle without end, for being killed at any moment.

What it does is drawn with a seed; in which order its threads get to do it is the machine's.
"""

import random
import threading
import traceback
from typing import get_args

import journal
from journal import Committed, EffectFailedError, EffectUnresolvedError, NotPerformed
from tests.crash.support.processes import say_parent
from tests.crash.support.recipient import KINDS
from tests.crash.support.service import STREAM, Delivery, Service, Trouble, World
from tests.crash.support.state import CURSOR, GROUP, GROUP_SIZE

THREADS = 4
ROUNDS_MAX = 100_000  # a worker that nobody kills ends some day
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)


def work(world: World, name: str, seed: int) -> None:
    """Starts up as a service does, and works until it is killed."""
    with world.open() as j:
        catch_up(j, world)
        say_parent("at work")
        threads = [
            threading.Thread(target=labour, args=(j, world, f"{name}.{index}", random.Random(f"{seed} {index}")))
            for index in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def catch_up(j: journal.Journal, world: World) -> None:
    """Recovers from the saved cursor on, and saves how far it came."""
    settled = j.recover(j.cursor(CURSOR), intents=Service(world, is_watched=False).intents)
    if settled > j.cursor(CURSOR):
        j.save_cursor(CURSOR, settled)


def labour(j: journal.Journal, world: World, name: str, draw: random.Random) -> None:
    """One thread: something else each round; what must never be is written down for the test."""
    mine: list[Committed] = []
    for index in range(ROUNDS_MAX):
        try:
            one_round(j, world, f"{name}.{index}", draw, mine)
        except (EffectUnresolvedError, EffectFailedError, ConnectionError, NotPerformed):
            pass  # what a troubled recipient leads to; the next recovery settles it
        except BaseException:
            world.note_fault(traceback.format_exc())
            raise


def one_round(j: journal.Journal, world: World, name: str, draw: random.Random, mine: list[Committed]) -> None:
    service = Service(world, is_watched=False, trouble=draw.choice([None, None, None, *TROUBLES]))
    match draw.choices(["one", "group", "again", "other", "step", "catch up"], [8, 2, 2, 2, 1, 1])[0]:
        case "one":
            mine.append(service.append(j, draw.choice(KINDS), name))
            service.settle(j, mine[-1])
        case "group":
            operations = [(f"{GROUP}{name} {index}", Delivery(draw.choice(KINDS))) for index in range(GROUP_SIZE)]
            for committed in j.append_all(STREAM, operations):
                assert isinstance(committed, Committed)
                world.acknowledge("append", committed.op_id, [committed.position, committed.sequence])
                mine.append(committed)
        case "again" if mine:
            again = draw.choice(mine)
            service.append(j, again.operation.recipient, again.op_id)
            service.settle(j, again)
        case "other":
            # Somebody else's operation, perhaps in flight there: one of us runs, the other joins or waits.
            for committed in j.read(after=max(0, j.head() - draw.randrange(1, 40)), limit=1):
                service.settle(j, committed)
        case "step":
            key = f"step {draw.randrange(50)}"
            value = j.step(key, lambda: {"computed by": name})
            world.acknowledge("step", key, value)
        case "catch up":
            catch_up(j, world)
