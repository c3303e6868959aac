"""The other end of `Peer`: one process, one scenario, one line of JSON for each thing that it says.

It dies without unwinding where it is told to. It is never imported by a test.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journal
from journal import Accepted, EffectPrunedError, JournalError, JournalForkedError, NotPerformed, Uncertain

from .support import FileRecipient, Key, nested, to_key


def say(word: str, **facts: Any) -> None:
    """Says one thing."""
    os.write(1, (json.dumps({"word": word, "pid": os.getpid(), **facts}) + "\n").encode())


def listen() -> str:
    """Waits for a word; an empty one says that nobody will speak again."""
    return sys.stdin.readline().strip()


def die() -> None:
    """Ends this process without unwinding."""
    os.kill(os.getpid(), signal.SIGKILL)


def perform(action: str, key: Key, recipient: FileRecipient, path: Path) -> None:
    """Does one of the things that a run, a reconcile or a body can be made of."""
    if action == "deliver":
        recipient.deliver(key)
    elif action == "listen":
        obey(path)
    elif action == "fork":
        fork_a_bystander()
    elif action == "die":
        die()
    elif action == "absent":
        raise NotPerformed("told so")
    elif action == "interrupt":
        raise KeyboardInterrupt
    elif action == "raise":
        raise RuntimeError("told so")
    else:
        say(action)


def obey(path: Path) -> None:
    """Does what it is told until it is told to return."""
    while (word := listen()) != "return":
        if word == "copy":
            shutil.copytree(path, path.with_name("copy"))
            say("copied")
        elif word in ("raise", ""):
            raise RuntimeError("told so")
        elif word == "absent":
            raise NotPerformed("told so")
        else:
            raise KeyboardInterrupt


def fork_a_bystander() -> None:
    """Forks a child that outlives this process and does nothing."""
    child = os.fork()
    if child == 0:
        sys.stdin.close()
        os.close(1)
        while True:
            signal.pause()
    say("forked", child=child)


def call(
    path: str,
    *,
    recipient: str,
    key: Any,
    method: str = "effect",
    run: list[str],
    reconcile: list[str] | None = None,
    request: Any = None,
    request_set: list[str] | None = None,
    wait: bool = False,
    after: str = "",
    options: dict[str, Any] | None = None,
    now: int | None = None,
) -> None:
    """One call of `effect`, `run_effect` or `step`; its run gives the process that ran, its reconcile what is found."""
    where, made, asked = Path(path), FileRecipient(Path(recipient)), to_key(key)
    settings = dict(options or {})
    if now is not None:
        settings["clock"] = lambda: now

    def work() -> int:
        for action in run:
            perform(action, asked, made, where)
        return os.getpid()

    def ask(_: Any) -> int | None:
        for action in reconcile or []:
            if action not in ("find", "prove"):
                perform(action, asked, made, where)
        found = made.find(asked)
        if found is None and "prove" in (reconcile or []):
            raise NotPerformed("no record")
        return found

    with journal.open(path, **settings) as j:
        say("opened")
        if wait:
            listen()
        bound = set(request_set) if request_set is not None else request
        try:
            if method == "effect":
                outcome = j.effect(asked, run=work, reconcile=ask, request=bound)
                if isinstance(outcome, Accepted):
                    say("accepted", proof=outcome.proof, via=outcome.via)
                else:
                    assert outcome == Uncertain()
                    say("uncertain")
            elif method == "run_effect":
                say("accepted", proof=j.run_effect(asked, work, request=bound))
            else:
                say("accepted", proof=j.step(asked, work))
        except BaseException as error:
            cause = error.__cause__
            said = "".join(traceback.format_exception(cause)) if cause else None
            say("raised", error=type(error).__name__, reason=getattr(error, "reason", None), cause=said)
        if after == "close":
            j.close()
            say("closed")
        listen()


def append(
    path: str,
    *,
    recipient: str,
    stream: str,
    op_ids: list[str],
    expected: int | None = None,
    wait: bool = False,
    after: str = "",
) -> None:
    """Appends one operation after the other and says each answer."""
    with journal.open(path) as j:
        say("opened")
        if wait:
            listen()
        for op_id in op_ids:
            try:
                c = j.append(stream, {"op": op_id}, op_id=op_id, expected=expected)
            except JournalError as error:
                say("raised", error=type(error).__name__)
            else:
                assert not isinstance(c, journal.AlreadyCommitted)
                say("appended", op_id=op_id, position=c.position, sequence=c.sequence, repeated=c.repeated)
        if after == "die":
            die()
        listen()


def append_with_state(path: str, *, recipient: str, version: int, snapshot_every: int) -> None:
    """Appends the numbers that it is told, with a reducer of its own, and says the state after each."""
    reducer = journal.Reducer(lambda: 0, lambda state, entry: state - entry["n"], int, snapshot_every, version)
    with journal.open(path, state=reducer) as j:
        while number := listen():
            j.append("s", {"n": int(number)}, op_id=number)
            say("loaded", state=j.load("s").state)


def flood(path: str, *, recipient: str) -> None:
    """Appends for ever."""
    with journal.open(path) as j:
        say("opened")
        count = 0
        while True:
            count += 1
            j.append("flood", count, op_id=str(count))


def look(path: str, *, recipient: str, options: dict[str, Any] | None = None) -> None:
    """Opens the journal and says what is in it, or why it does not open."""
    try:
        with journal.open(path, **(options or {})) as j:
            operations = [[c.stream, c.sequence, c.position, c.operation] for c in j.read()]
            records = [[r.key, r.phase, r.attempts, r.proof] for r in j.effects()]
            say("looked", head=j.head(), operations=operations, records=records)
    except (JournalError, OSError) as error:
        say("raised", error=type(error).__name__, message=str(error))


def write(path: str, *, recipient: str) -> None:
    """Opens the journal and, for each word, appends an operation of that name and saves it as a cursor."""
    with journal.open(path) as j:
        say("opened")
        while word := listen():
            c = j.append("written", word, op_id=word)
            j.save_cursor(word, c.position)
            say("written", position=c.position)


def _reaped(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_use(path: str, *, recipient: str) -> None:
    """Forks with an open journal: the child says what each method raises, the parent goes on."""
    j = journal.open(path)
    j.append("s", 1, op_id="before")
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: j.append("s", 2, op_id="child"),
        "append_all": lambda: j.append_all("s", [("child", 2)]),
        "read": lambda: list(j.read()),
        "streams": j.streams,
        "head": j.head,
        "effect": lambda: j.effect("k", run=lambda: 1, reconcile=lambda _: None),
        "run_effect": lambda: j.run_effect("k", lambda: 1),
        "step": lambda: j.step("k", lambda: 1),
        "record": lambda: j.record("k"),
        "unfinished": j.unfinished,
        "effects": lambda: list(j.effects()),
        "history": lambda: j.history("k"),
        "clear_effect": lambda: j.clear_effect("k", reason="r"),
        "prune_effects": lambda: j.prune_effects(settled_before=1),
        "recover": lambda: j.recover(0, intents=lambda _: []),
        "save_cursor": lambda: j.save_cursor("c", 1),
        "cursor": lambda: j.cursor("c"),
        "backup": lambda: j.backup(f"{path}.copy"),
        "vacuum": j.vacuum,
        "rebuild": j.rebuild,
        "restored": j.restored,
        "confirm_restored": j.confirm_restored,
    }
    for name, method in calls.items():
        child = os.fork()
        if child == 0:
            try:
                method()
            except JournalForkedError as error:
                assert str(error)
                sys.exit(3)  # an ordinary exit: what the interpreter does at its end must not harm the parent
            sys.exit(4)
        say("child", method=name, status=_reaped(child))
        j.append("s", name, op_id=name)
    say("parent", head=j.head(), operations=[c.operation for c in j.read()])
    j.close()


def fork_open(path: str, *, recipient: str) -> None:
    """Forks with an open journal: the child opens it for itself and appends, the parent goes on."""
    j = journal.open(path)
    j.append("s", "before", op_id="before")
    child = os.fork()
    if child == 0:
        with journal.open(path) as own:
            own.append("s", "child", op_id="child")
        sys.exit(3)
    status = _reaped(child)
    j.append("s", "after", op_id="after")
    say("parent", status=status, operations=[c.operation for c in j.read()])
    j.close()


def fork_busy(path: str, *, recipient: str) -> None:
    """Forks again and again while a thread appends: each child opens for itself and appends, none may hang."""
    j = journal.open(path)
    is_over = threading.Event()
    counts: list[int] = []

    def work() -> None:
        count = 0
        while not is_over.is_set():
            count += 1
            j.append("parent", count, op_id=str(count))
        counts.append(count)

    thread = threading.Thread(target=work)
    thread.start()
    statuses = []
    for index in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what is risky about it is what is tested
            child = os.fork()
        if child == 0:
            signal.alarm(60)
            with journal.open(path) as own:
                own.append("child", index, op_id=str(index))
            os._exit(3)
        statuses.append(_reaped(child))
    is_over.set()
    thread.join()
    operations = [c.operation for c in j.read("child")]
    parents = [c.operation for c in j.read("parent")] == list(range(1, counts[0] + 1))
    say("parent", statuses=statuses, operations=operations, is_whole=parents)
    j.close()


def close_before_the_child(path: str, *, recipient: str) -> None:
    """Forks with an open journal, and closes it while the child lives on."""
    j = journal.open(path)
    child = os.fork()
    if child == 0:
        while listen():
            time.sleep(0)
        os._exit(0)
    j.close()
    say("closed")
    assert _reaped(child) == 0


def hold(path: str, *, recipient: str, readonly: bool) -> None:
    """Opens the journal, and closes it when it is told to."""
    with journal.open(path, readonly=readonly):
        say("opened")
        listen()
    say("closed")
    listen()


def fork_and_replace(path: str, *, recipient: str) -> None:
    """Forks at some moment while a thread replaces the data file: each child opens for itself, none may hang."""
    j = journal.open(path)
    for index in range(50):
        j.append("s", index, op_id=str(index))
    refused: list[JournalError] = []

    def replace(index: int) -> None:
        try:
            (j.vacuum if index % 2 else j.rebuild)()
        except journal.JournalBusyError as error:  # the child has it open
            refused.append(error)

    statuses = []
    for index in range(30):
        thread = threading.Thread(target=replace, args=(index,))
        thread.start()
        for _ in range(index * 20):
            os.sched_yield()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # as in `fork_busy`
            child = os.fork()
        if child == 0:
            signal.alarm(60)
            with journal.open(path) as own:
                own.append("child", index, op_id=str(index))
            os._exit(3)
        statuses.append(_reaped(child))
        thread.join()
    operations = [c.operation for c in j.read("child")]
    say("parent", statuses=statuses, operations=operations, findings=len(list(j.verify())), refused=len(refused))
    j.close()


def grow(path: str, *, recipient: str) -> None:
    """Appends 40 MiB, one at a time."""
    with journal.open(path) as j:
        for index in range(40):
            j.append("large", "x" * 1024 * 1024, op_id=str(index))
        say("grown", head=j.head())


def stampede(path: str, *, recipient: str, method: str) -> None:
    """Sixteen threads commit all the time, and are switched as often as can be."""
    sys.setswitchinterval(1e-6)
    with journal.open(path) as j:

        def work(number: int) -> None:
            for index in range(60):
                if method == "append":
                    j.append("s", index, op_id=f"{number}-{index}")
                else:
                    j.effect((number, index), run=lambda: index, reconcile=lambda _: None)  # noqa: B023 - called at once

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("ended", head=j.head())


def begin_anew(path: str, *, recipient: str, key: Any) -> None:
    """Clears an effect and makes it again, with this process as its proof."""
    asked = to_key(key)
    with journal.open(path) as j:
        j.clear_effect(asked, reason="begin anew")
        outcome = j.effect(asked, run=os.getpid, reconcile=lambda _: None)
        assert isinstance(outcome, Accepted)
        say("accepted", proof=outcome.proof, via=outcome.via)


def prune(path: str, *, recipient: str, name: str, count: int) -> None:
    """Appends and calls for keys that others call for too, and prunes all the time; says how each call was answered."""
    with journal.open(path) as j:
        say("opened")
        listen()
        ran: list[int] = []
        told = pruned = 0
        for number in range(count):
            j.append(name, number, op_id=str(number))
            before = len(ran)
            try:
                j.run_effect(("shared", number), lambda: ran.append(number))  # noqa: B023 - called at once
            except EffectPrunedError:
                told += 1
            else:
                told += len(ran) == before
            if number % 10 == 0:
                pruned += j.prune_effects(settled_before=2**63 - 1)
        say("ended", ran=len(ran), told=told, pruned=pruned)
        listen()


def try_values(path: str, *, recipient: str) -> None:
    """Gives values that nest far too deep to every method, one process for all: none may end it."""
    deep = nested(100_000)
    with journal.open(path) as j:
        say("opened")
        attempts: dict[str, Callable[[], Any]] = {
            "append": lambda: j.append("s", deep, op_id="1"),
            "effect": lambda: j.effect("e", run=lambda: deep, reconcile=lambda _: None),
            "request": lambda: j.effect("q", run=lambda: 1, reconcile=lambda _: None, request=deep),
            "run_effect": lambda: j.run_effect("r", lambda: deep),
            "step": lambda: j.step("s", lambda: deep),
        }
        for name, function in attempts.items():
            try:
                function()
            except Exception as error:
                say("raised", method=name, error=type(error).__name__, reason=getattr(error, "reason", None))
            else:
                say("returned", method=name)


def wait_for_ever(path: str, *, recipient: str) -> None:
    """Opens and does nothing."""
    with journal.open(path):
        say("opened")
        while listen():
            time.sleep(0)


def compact(path: str, *, recipient: str, stream: str, through: int) -> None:
    """Compacts a stream."""
    with journal.open(path) as j:
        say("compacted", floor=j.compact(stream, through))


SCENARIOS: dict[str, Callable[..., None]] = {
    "call": call,
    "append": append,
    "append_with_state": append_with_state,
    "flood": flood,
    "look": look,
    "write": write,
    "fork_use": fork_use,
    "fork_open": fork_open,
    "fork_busy": fork_busy,
    "fork_and_replace": fork_and_replace,
    "close_before_the_child": close_before_the_child,
    "hold": hold,
    "grow": grow,
    "stampede": stampede,
    "begin_anew": begin_anew,
    "prune": prune,
    "try_values": try_values,
    "wait_for_ever": wait_for_ever,
    "compact": compact,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2]))
