"""`state`, `validate`, `authorize` and `load`: what a stream's operations come to, and who may append which."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import journal
from journal import (
    AlreadyCommitted,
    Committed,
    CorruptRecordError,
    IdentityConflictError,
    InvalidOperationError,
    Journal,
    Loaded,
    OperationRefusedError,
    Reducer,
    SequenceConflictError,
)
from journal._storage import layout
from journal.options import PAGE_RECORDS
from journal.records import CompactionRecord, ResetRecord, SnapshotRow

from .support import nested

Open = Callable[..., Journal]


class Account(msgspec.Struct):
    balance: int = 0
    entries: list[int] = []
    extra: Any = None


def enter(account: Account, entry: Any) -> Account:
    """Changes what it is given, as careless code does."""
    account.balance += entry["n"]
    account.entries.append(entry["n"])
    if entry["n"] == 13:
        raise ArithmeticError("thirteen")
    return account


def summing(**options: Any) -> Reducer:
    """A reducer over entries {"n": number}."""
    return Reducer(**{"initial": Account, "apply": enter, "type": Account, **options})


def put(j: Journal, *numbers: int, stream: str = "s", **options: Any) -> None:
    """Appends entries, each under its own number as op_id."""
    for number in numbers:
        j.append(stream, {"n": number}, op_id=str(number), **options)


def snapshot_of(j: Any, stream: str = "s") -> SnapshotRow | None:
    row: SnapshotRow | None = j._store.read(lambda view: view.snapshot(stream))
    return row


def compact_records(j: Any, floor: int, stream: str = "s", epoch: int = 1) -> None:
    """Says that a stream is compacted; nothing at or below the floor may be read for a state any more."""
    j._store.commit(lambda txn: txn.append(CompactionRecord(stream, epoch, floor, txn.at, floor)))


def reset_stream(j: Any, epoch: int, stream: str = "s") -> None:
    j._store.commit(lambda txn: txn.append(ResetRecord(stream, epoch, txn.at)))


def flip_snapshot(j: Any, stream: str = "s") -> None:
    """Damages the snapshot's row."""
    key = layout.SNAPSHOT + stream.encode()

    def flip(txn: Any) -> None:
        value = bytearray(txn._get(key))
        value[0] ^= 1
        txn._txn.put(key, bytes(value))
        txn.has_changes = True

    j._store.commit(flip)


# Load


def test_load_gives_what_the_operations_come_to(open_journal: Open) -> None:
    """State, position and sequence of the stream's last operation, whatever stands in other streams."""
    j = open_journal(state=summing())
    put(j, 1, 2)
    put(j, 7, stream="t")
    put(j, 3)
    put(j, 8, stream="t")

    loaded = j.load("s")

    assert loaded == Loaded(Account(6, [1, 2, 3]), journal.Cursor(4), 3)
    assert isinstance(loaded.cursor, journal.Cursor)


def test_unknown_stream_has_the_initial_state(open_journal: Open) -> None:
    """At cursor and sequence 0."""
    assert open_journal(state=summing()).load("none") == Loaded(Account(), journal.Cursor(0), 0)


def test_load_without_a_reducer_is_wrong_use(j: Journal) -> None:
    """A `TypeError` that says what is missing."""
    with pytest.raises(TypeError, match=r"state=journal\.Reducer"):
        j.load("s")


@pytest.mark.parametrize("stream", ["", "x" * 256, "\ud800", 1])
def test_stream_of_load_is_checked(open_journal: Open, stream: Any) -> None:
    """As everywhere."""
    with pytest.raises((TypeError, ValueError)):
        open_journal(state=summing()).load(stream)


def test_loaded_states_are_detached(open_journal: Open) -> None:
    """Who changes one changes nobody else's."""
    j = open_journal(state=summing())
    put(j, 1)
    j.load("s").state.entries.append(99)
    put(j, 2)

    assert j.load("s").state == Account(3, [1, 2])
    assert j.load("s").state.entries is not j.load("s").state.entries


def test_apply_gets_an_operation_of_its_own(open_journal: Open) -> None:
    """One that it changes is neither the caller's nor the one on record."""

    def take(state: list[Any], operation: dict[str, Any]) -> list[Any]:
        operation["n"] += 100
        return [*state, operation]

    j = open_journal(state=Reducer(list, take, Any))
    given = {"n": 1}

    answer = j.append("s", given, op_id="1")

    assert isinstance(answer, Committed)
    assert (given, answer.operation) == ({"n": 1}, {"n": 1})
    assert [c.operation for c in j.read()] == [{"n": 1}]
    assert j.load("s").state == [{"n": 101}]


def test_state_is_what_its_type_reads_back(open_journal: Open) -> None:
    """Each state is decoded from its encoding before the next operation is applied, in every process alike."""
    seen: list[type] = []

    def apply(state: Any, _: Any) -> Any:
        seen.append(type(state["members"]))
        return {"members": [*state["members"], "x", "x"]}

    j = open_journal(state=Reducer(lambda: {"members": ["x"]}, apply, dict[str, set[str]]))
    j.append("s", 1, op_id="1")
    j.append("s", 2, op_id="2")

    assert j.load("s").state == {"members": {"x"}}
    assert set(seen) == {set}


def test_order_of_a_states_map_is_kept(open_journal: Open) -> None:
    """What was put last is last, in the cache as in a snapshot."""
    reducer = Reducer(dict, lambda state, name: {**state, name: 1}, dict[str, int], snapshot_every=1)
    j = open_journal(state=reducer)
    for name in "cab":
        j.append("s", name, op_id=name)
    j.close()

    assert list(open_journal(state=reducer).load("s").state) == ["c", "a", "b"]


def test_long_stream_is_read_in_pages(open_journal: Open) -> None:
    """More operations than a page has, with no snapshot and nothing remembered."""
    j = open_journal()
    count = 2 * PAGE_RECORDS + 3
    j.append_all("s", [(str(n), {"n": n % 7}) for n in range(count)])
    j.close()
    j = open_journal(state=summing())

    loaded = j.load("s")

    assert (loaded.state.balance, loaded.sequence) == (sum(n % 7 for n in range(count)), count)


def test_append_to_a_long_stream_brings_its_state_up_first(open_journal: Open) -> None:
    """What lies too far behind for one transaction is folded outside."""
    j = open_journal()
    j.append_all("s", [(str(n), {"n": 1}) for n in range(2 * PAGE_RECORDS)])
    j.close()
    states: list[int] = []
    j = open_journal(state=summing(), validate=lambda _, state: states.append(state.balance))

    j.append("s", {"n": 1}, op_id="new")

    assert states == [2 * PAGE_RECORDS]
    assert j.load("s").state.balance == 2 * PAGE_RECORDS + 1


def test_readonly_handle_loads(open_journal: Open) -> None:
    """Nothing is written by it."""
    j = open_journal(state=summing())
    put(j, 1)
    j.close()
    j = open_journal(state=summing(), readonly=True)

    assert j.load("s").state.balance == 1


# Snapshots


@pytest.mark.parametrize("every", [1, 2, 5, 100])
def test_snapshot_is_kept_when_the_last_one_is_long_ago(open_journal: Open, every: int) -> None:
    """With every n-th operation, in the commit of that operation; it is no log record."""
    j = open_journal(state=summing(snapshot_every=every))
    put(j, *range(100, 107))

    row = snapshot_of(j)

    assert (0 if row is None else row.sequence) == 7 // every * every
    assert row is None or (row.position, row.epoch, row.version) == (row.sequence, 1, 1)
    assert j.head() == 7


def test_snapshot_stands_where_an_append_all_ended(open_journal: Open) -> None:
    """At most one for a call."""
    j = open_journal(state=summing(snapshot_every=2))
    j.append_all("s", [(str(n), {"n": n}) for n in range(5)])

    row = snapshot_of(j)

    assert row is not None
    assert (row.sequence, row.position) == (5, 5)


def test_state_begins_with_the_snapshot(open_journal: Open) -> None:
    """What lies before it is not applied again."""
    applied: list[int] = []

    def apply(account: Account, entry: Any) -> Account:
        applied.append(entry["n"])
        return enter(account, entry)

    j = open_journal(state=summing(snapshot_every=3))
    put(j, 1, 2, 3, 4)
    j.close()
    j = open_journal(state=summing(snapshot_every=3, apply=apply))

    assert j.load("s").state == Account(10, [1, 2, 3, 4])
    assert applied == [4]


def test_state_is_remembered(open_journal: Open) -> None:
    """Nothing is applied twice by one handle."""
    applied: list[int] = []

    def apply(account: Account, entry: Any) -> Account:
        applied.append(entry["n"])
        return enter(account, entry)

    j = open_journal(state=summing(apply=apply))
    put(j, 1, 2, 3)
    j.load("s")
    put(j, 4)

    assert applied == [1, 2, 3, 4]


def test_other_version_folds_anew(open_journal: Open) -> None:
    """A snapshot of another version is not used, and replaced at the next append that is due."""
    j = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    j.close()

    def double(account: Account, entry: Any) -> Account:
        return enter(enter(account, entry), entry)

    j = open_journal(state=summing(apply=double, version=2, snapshot_every=2))
    put(j, 4)

    assert j.load("s").state.balance == 20
    row = snapshot_of(j)
    assert row is not None
    assert (row.version, row.sequence) == (2, 4)


def test_snapshot_that_does_not_decode_is_rebuilt(open_journal: Open) -> None:
    """The log is the truth; the next append replaces the useless snapshot."""
    j = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    j.close()
    counting = Reducer(lambda: 0, lambda state, entry: state + entry["n"], int, snapshot_every=100)
    j = open_journal(state=counting)

    assert j.load("s").state == 6
    put(j, 4)
    row = snapshot_of(j)
    assert row is not None
    assert (row.sequence, row.state) == (4, b"10")


def test_damaged_snapshot_is_rebuilt(open_journal: Open) -> None:
    """A flipped byte in its row costs time and no more."""
    j = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    j.step("between the identities and the snapshots", lambda: 1)
    flip_snapshot(j)
    j.close()
    j = open_journal(state=summing(snapshot_every=2))

    assert j.load("s").state.balance == 6
    put(j, 4)
    row = snapshot_of(j)
    assert row is not None
    assert row.sequence == 4


def test_snapshot_carries_over_a_compaction(open_journal: Open) -> None:
    """What is at or below the floor is not read."""
    j = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    compact_records(j, 2)
    j.close()
    j = open_journal(state=summing(snapshot_every=2))

    assert j.load("s").state == Account(6, [1, 2, 3])


@pytest.mark.parametrize("how", ["version", "type", "damage", "none"])
def test_state_that_cannot_be_rebuilt_says_so(open_journal: Open, how: str) -> None:
    """After a compaction with no snapshot that can be used: for `load` and `append`, but not for what is repeated."""
    j = open_journal(state=None if how == "none" else summing(snapshot_every=2))
    put(j, 1, 2, 3)
    compact_records(j, 2)
    if how == "damage":
        flip_snapshot(j)
    j.close()
    other = Reducer(lambda: 0, lambda state, entry: state + entry["n"], int)
    j = open_journal(state={"version": summing(version=2), "type": other}.get(how, summing()))

    with pytest.raises(CorruptRecordError, match="cannot be rebuilt") as caught:
        j.load("s")
    with pytest.raises(CorruptRecordError):
        put(j, 4)

    assert caught.value.stream == "s"
    assert j.append("s", {"n": 3}, op_id="3") == msgspec.structs.replace(next(j.read(after=2)), repeated=True)
    with pytest.raises(IdentityConflictError):
        j.append("s", {"n": 4}, op_id="3")
    with pytest.raises(SequenceConflictError):
        j.append("s", {"n": 4}, op_id="4", expected=1)
    put(j, 5, stream="t")
    assert j.load("t").state is not None


def test_snapshot_below_the_floor_is_no_help(open_journal: Open) -> None:
    """What came between it and the floor is gone."""
    j = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    compact_records(j, 3)
    j.close()
    j = open_journal(state=summing())

    with pytest.raises(CorruptRecordError, match="cannot be rebuilt"):
        j.load("s")
    with pytest.raises(CorruptRecordError):
        put(j, 4)
    assert isinstance(j.append("s", {"n": 3}, op_id="3"), AlreadyCommitted)


def test_what_is_remembered_below_the_floor_is_not_used(open_journal: Open) -> None:
    """A handle that stood still while others compacted begins with their snapshot."""
    j: Any = open_journal(state=summing(snapshot_every=100))
    put(j, 1, 2)
    remembered = j._handle.rules.states
    old = remembered.get("s")
    put(j, 3, 4)
    j._store.commit(lambda txn: txn.save_snapshot("s", SnapshotRow(1, 4, 4, 1, b'{"balance":1000}', 0)))
    compact_records(j, 4)
    put(j, 5)
    remembered._by_stream["s"] = old

    assert j.load("s").state.balance == 1005
    remembered._by_stream["s"] = old
    put(j, 6)
    assert j.load("s").state.balance == 1011


def test_reset_stream_begins_anew(open_journal: Open) -> None:
    """Neither what is remembered nor a snapshot of another epoch is used."""
    j: Any = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    old = snapshot_of(j)
    reset_stream(j, 2)

    assert j.load("s") == Loaded(Account(), journal.Cursor(0), 0)
    j._store.commit(lambda txn: txn.save_snapshot("s", old))
    put(j, 5)
    assert j.load("s") == Loaded(Account(5, [5]), journal.Cursor(5), 1)
    j.close()
    assert open_journal(state=summing()).load("s") == Loaded(Account(5, [5]), journal.Cursor(5), 1)


def test_map_grows_under_states_and_snapshots(open_journal: Open) -> None:
    """A commit that found no room is decided anew, and comes to the same."""
    reducer = Reducer(list, lambda state, operation: [*state, operation["n"] * 100_000], list[str], snapshot_every=1)
    j = open_journal(state=reducer, map_size=1024 * 1024)
    for letter in "abcdefgh":
        j.append("s", {"n": letter}, op_id=letter)

    assert [part[0] for part in j.load("s").state] == list("abcdefgh")
    j.close()
    assert open_journal(state=reducer).load("s").sequence == 8


# The order of decisions


@pytest.fixture
def strict(open_journal: Open) -> tuple[Journal, list[str]]:
    """A journal whose hooks say no, by the operation, and note that they were asked."""
    asked: list[str] = []

    def validate(operation: Any, _: Any) -> None:
        asked.append("validate")
        if operation.get("invalid"):
            raise ValueError("no good")

    def authorize(_: str, operation: Any, __: Any) -> Any:
        asked.append("authorize")
        return operation.get("answer", True)

    def apply(state: int, operation: Any) -> Any:
        asked.append("apply")
        return state + operation["n"]

    return open_journal(state=Reducer(lambda: 0, apply, int), validate=validate, authorize=authorize), asked


def test_hooks_are_asked_in_order(strict: tuple[Journal, list[str]]) -> None:
    """Validate, authorize, reduce."""
    j, asked = strict
    j.append("s", {"n": 1}, op_id="1")

    assert asked == ["validate", "authorize", "apply"]


def test_repeat_is_answered_before_any_policy(strict: tuple[Journal, list[str]]) -> None:
    """And so is a conflict of identities, and of sequences."""
    j, asked = strict
    first = j.append("s", {"n": 1}, op_id="1")
    asked.clear()

    assert j.append("s", {"n": 1}, op_id="1", expected=7) == msgspec.structs.replace(first, repeated=True)
    with pytest.raises(IdentityConflictError):
        j.append("s", {"n": 1, "invalid": True}, op_id="1")
    with pytest.raises(SequenceConflictError):
        j.append("s", {"n": 1, "invalid": True}, op_id="2", expected=0)
    assert asked == []


def test_refusal_of_validate_carries_its_cause(strict: tuple[Journal, list[str]]) -> None:
    """It is asked before authorize, and consumes nothing."""
    j, asked = strict
    with pytest.raises(InvalidOperationError, match="validate raised ValueError: no good") as caught:
        j.append("s", {"n": 1, "invalid": True, "answer": False}, op_id="1")

    assert isinstance(caught.value.__cause__, ValueError)
    assert (caught.value.stream, caught.value.op_id, caught.value.position) == ("s", "1", None)
    assert asked == ["validate"]
    assert (j.head(), j.streams()) == (0, [])


@pytest.mark.parametrize("answer, reason", [(False, "authorize says no"), ("over the limit", "over the limit")])
def test_refusal_of_authorize_names_actor_and_reason(
    strict: tuple[Journal, list[str]], answer: Any, reason: str
) -> None:
    """False, or a reason."""
    j, asked = strict
    with pytest.raises(OperationRefusedError) as caught:
        j.append("s", {"n": 1, "answer": answer}, op_id="1", actor="ann")

    assert (caught.value.stream, caught.value.op_id, caught.value.reason) == ("s", "1", reason)
    assert "'ann'" in str(caught.value)
    assert "apply" not in asked
    assert j.head() == 0
    put(j, 4)
    assert j.load("s") == Loaded(4, journal.Cursor(1), 1)


@pytest.mark.parametrize("answer", [None, 1, 0, [], {}])
def test_other_answer_of_authorize_is_wrong_use(strict: tuple[Journal, list[str]], answer: Any) -> None:
    """What is neither yes nor no is not taken for either."""
    j, _ = strict
    with pytest.raises(TypeError, match="authorize must give"):
        j.append("s", {"n": 1, "answer": answer}, op_id="1")

    assert j.head() == 0


def test_hooks_get_actor_operation_and_state(open_journal: Open) -> None:
    """The state is the one before the operation; everything is decoded, and changing it changes nothing."""
    seen: list[Any] = []

    def validate(operation: Any, account: Account) -> None:
        seen.append(("validate", operation["n"], account.balance))
        account.balance = operation["n"] = 77

    def authorize(actor: str, operation: Any, account: Account) -> bool:
        seen.append((actor, operation["n"], account.balance))
        account.balance = operation["n"] = 88
        return True

    j = open_journal(state=summing(), validate=validate, authorize=authorize)
    put(j, 1, 2, actor="ann")

    assert seen == [("validate", 1, 0), ("ann", 1, 0), ("validate", 2, 1), ("ann", 2, 1)]
    assert j.load("s").state == Account(3, [1, 2])


def test_hooks_without_a_reducer_get_no_state(open_journal: Open) -> None:
    """`None`, and `append_all` is still all or nothing."""
    seen: list[Any] = []

    def authorize(actor: str, operation: int, state: Any) -> bool:
        seen.append((actor, operation, state))
        return operation < 3

    j = open_journal(validate=lambda operation, state: seen.append((operation, state)), authorize=authorize)
    with pytest.raises(OperationRefusedError):
        j.append_all("s", [("1", 1), ("3", 3)], actor="ann")

    assert seen == [(1, None), ("ann", 1, None), (3, None), ("ann", 3, None)]
    assert j.head() == 0


def test_each_operation_of_a_call_meets_the_state_after_those_before(open_journal: Open) -> None:
    """All of them are committed or none; one that stands there twice is asked about once."""
    seen: list[int] = []

    def validate(_: Any, account: Account) -> None:
        seen.append(account.balance)
        if account.balance > 5:
            raise ValueError("enough")

    j = open_journal(state=summing(), validate=validate)
    j.append_all("s", [("2", {"n": 2}), ("3", {"n": 3}), ("2", {"n": 2})])
    with pytest.raises(InvalidOperationError) as caught:
        j.append_all("s", [("2", {"n": 2}), ("4", {"n": 4}), ("5", {"n": 5})])

    assert seen == [0, 2, 5, 9]
    assert caught.value.op_id == "5"
    assert j.load("s") == Loaded(Account(5, [2, 3]), journal.Cursor(2), 2)
    assert j.head() == 2


# What goes wrong in a hook


def test_apply_that_raises_refuses_the_operation(open_journal: Open) -> None:
    """Even after it has changed what it was given."""
    j = open_journal(state=summing())
    put(j, 1)
    with pytest.raises(InvalidOperationError, match="apply raised ArithmeticError: thirteen") as caught:
        put(j, 13)

    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert j.load("s") == Loaded(Account(1, [1]), journal.Cursor(1), 1)


def test_stored_operation_that_apply_refuses_is_named(open_journal: Open) -> None:
    """At `load` and at `append`, with its position; what does not need the state goes on."""
    j = open_journal()
    put(j, 1, 13, 2)
    j.close()
    j = open_journal(state=summing())

    with pytest.raises(InvalidOperationError, match="position 2 cannot be applied") as caught:
        j.load("s")
    with pytest.raises(InvalidOperationError) as caught_too:
        put(j, 4)

    assert [(error.value.position, error.value.op_id) for error in (caught, caught_too)] == [(2, "13")] * 2
    assert j.head() == 3
    put(j, 4, stream="t")
    assert len(list(j.read())) == 4


@pytest.mark.parametrize(
    "state, why",
    [
        ({1, 2}, "type set"),
        ({"a": float("nan")}, r"\$\.a is nan"),
        (nested(200), "deeper than"),
        ("x" * (16 * 1024 * 1024), "bytes as JSON"),
    ],
)
def test_state_that_cannot_be_kept_refuses_the_operation(open_journal: Open, state: Any, why: str) -> None:
    """With the path, and the operation consumes nothing."""
    j = open_journal(state=Reducer(lambda: None, lambda _, __: state, Any))
    with pytest.raises(InvalidOperationError, match=why):
        j.append("s", 1, op_id="1")

    assert j.head() == 0


def test_state_of_another_type_is_refused_with_its_path(open_journal: Open) -> None:
    """msgspec does not check a struct when it is built."""
    j = open_journal(state=summing(apply=lambda *_: Account("much")))  # type: ignore[arg-type]  # the mistake of a user
    with pytest.raises(InvalidOperationError, match=r"\$\.balance"):
        put(j, 1)


def broken() -> Any:
    raise LookupError("no beginning")


@pytest.mark.parametrize("initial, why", [(broken, "initial raised LookupError"), (set, "type set")])
def test_initial_that_is_of_no_use_is_named(open_journal: Open, initial: Any, why: str) -> None:
    """For `load` and `append` alike."""
    j = open_journal(state=Reducer(initial, lambda state, _: state, Any))
    with pytest.raises(InvalidOperationError, match=why) as caught:
        j.load("s")
    with pytest.raises(InvalidOperationError, match=why):
        put(j, 1)

    assert caught.value.stream == "s"
    assert j.head() == 0


class Stop(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Stop(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("hook", ["validate", "authorize", "apply"])
def test_what_a_hook_raises_that_is_no_exception_passes(open_journal: Open, hook: str, error: BaseException) -> None:
    """It reaches who appended; nothing is written, and the journal goes on."""

    def maybe(answer: Any, operation: Any) -> Any:
        if operation["n"] == 9:
            raise error
        return answer

    hooks = {
        "validate": lambda operation, _: maybe(None, operation),
        "authorize": lambda _, operation, __: maybe(True, operation),
    }
    apply = maybe if hook == "apply" else (lambda state, _: state)
    j = open_journal(state=Reducer(lambda: 1, apply, int), **({hook: hooks[hook]} if hook in hooks else {}))
    put(j, 1)
    with pytest.raises(type(error)):
        put(j, 9)
    put(j, 2)

    assert [c.op_id for c in j.read()] == ["1", "2"]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, Stop, ValueError])
def test_bad_hook_hurts_nobody_else_of_its_commit(open_journal: Open, raised: type[BaseException]) -> None:
    """Many append at once, some to be refused however: each is told of its own."""

    def validate(operation: Any, _: Any) -> None:
        if operation["n"] % 3 == 0:
            raise raised

    j = open_journal(state=summing(snapshot_every=4), validate=validate)
    refused: list[int] = []

    def append(number: int) -> None:
        try:
            j.append("s", {"n": number}, op_id=str(number))
        except (InvalidOperationError, SystemExit, KeyboardInterrupt, Stop):
            refused.append(number)

    numbers = range(100, 160)
    threads = [threading.Thread(target=append, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(refused) == [number for number in numbers if number % 3 == 0]
    assert sorted(int(c.op_id) for c in j.read()) == [number for number in numbers if number % 3]
    assert j.load("s").state.entries == [c.operation["n"] for c in j.read("s")]
    assert [c.sequence for c in j.read("s")] == list(range(1, 41))


@pytest.mark.parametrize(
    "call", ["head", "append", "load", "close", "stats", "save_cursor", "read", "verify", "effects"]
)
@pytest.mark.parametrize("hook", ["validate", "authorize", "initial", "apply", "upcast"])
def test_hook_that_calls_the_journal_is_refused(open_journal: Open, hook: str, call: str) -> None:
    """At once, instead of waiting for itself; the journal goes on."""

    def meddle(*given: Any) -> Any:
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: j.append("s", {"n": 5}, op_id="5"),
            "load": lambda: j.load("s"),
            "save_cursor": lambda: j.save_cursor("c", 0),
            "read": lambda: list(j.read()),
            "verify": lambda: list(j.verify()),
            "effects": lambda: list(j.effects()),
        }
        calls.get(call, getattr(j, call))()
        raise AssertionError(given)

    j = open_journal()
    j.append("s", {"n": 1, "type": "old"}, op_id="1")
    j.close()
    reducer = summing(**({hook: meddle} if hook in ("initial", "apply") else {}))
    options = (
        {hook: meddle} if hook in ("validate", "authorize") else {"upcast": {"old": meddle}} if hook == "upcast" else {}
    )
    j = open_journal(state=reducer, **options)

    with pytest.raises(InvalidOperationError, match="may not call a journal"):
        j.append("s", {"n": 2}, op_id="2")

    assert j.head() == 1
    if hook in ("validate", "authorize"):
        assert j.load("s").state.balance == 1


# Several handles


def test_two_versions_at_once_are_never_mixed(open_journal: Open, start_peer: Callable[..., Any]) -> None:
    """Another process with another reducer appends in between: each sees its own fold."""
    j = open_journal(state=summing(snapshot_every=2))
    peer = start_peer("append_with_state", version=2, snapshot_every=3)
    total = 0
    for number in range(100, 120):
        put(j, number)
        total += number
        peer.tell(str(number + 1_000))
        said = peer.hear("loaded")
        total += number + 1_000
        assert said["state"] == -total
        assert j.load("s").state.balance == total
    peer.finish()

    assert j.load("s").sequence == 40


# Wrong use


async def later(*_: Any) -> Any:
    """A coroutine function."""


@pytest.mark.parametrize(
    "options",
    [
        {"state": Reducer(later, enter, Account)},
        {"state": Reducer(Account, later, Account)},
        {"validate": later},
        {"authorize": later},
        {"upcast": {"old": later}},
        {"state": enter},
        {"validate": 1},
        {"authorize": "all"},
        {"upcast": [later]},
        {"upcast": {True: enter}},
        {"upcast": {None: enter}},
        {"upcast": {"old": "new"}},
    ],
)
def test_useless_rules_are_refused_at_open(open_journal: Open, path: Any, options: dict[str, Any]) -> None:
    """Before anything is made."""
    with pytest.raises(TypeError):
        open_journal(**options)

    assert not path.exists()


@pytest.mark.parametrize(
    "options, error",
    [
        ({"initial": 1}, TypeError),
        ({"apply": None}, TypeError),
        ({"type": 3}, TypeError),
        ({"snapshot_every": 0}, ValueError),
        ({"snapshot_every": -1}, ValueError),
        ({"snapshot_every": True}, TypeError),
        ({"snapshot_every": 1.5}, TypeError),
        ({"version": -1}, ValueError),
        ({"version": 1 << 63}, ValueError),
        ({"version": True}, TypeError),
        ({"version": "2"}, TypeError),
    ],
)
def test_useless_reducer_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    """When it is made."""
    with pytest.raises(error, match="Reducer: "):
        summing(**options)


def test_version_zero_is_one() -> None:
    """Any int from 0 on."""
    assert summing(version=0).version == 0


def test_deep_verify_finds_a_snapshot_that_is_not_the_fold(open_journal: Open) -> None:
    """What `load` would go on from without a word."""
    j: Any = open_journal(state=summing(snapshot_every=2))
    put(j, 1, 2, 3)
    assert list(j.verify(deep=True)) == []
    j._store.commit(lambda txn: txn.save_snapshot("s", SnapshotRow(1, 2, 2, 1, b'{"balance":1000}', 0)))

    found = list(j.verify(deep=True))

    assert list(j.verify()) == []
    assert [(finding.table, finding.position) for finding in found] == [("snapshots", 2)]


def test_deep_verify_needs_a_reducer(open_journal: Open) -> None:
    """Told at the call."""
    j: Any = open_journal()

    with pytest.raises(TypeError, match="state="):
        j.verify(deep=True)
    with pytest.raises(TypeError, match="deep must be a bool"):
        j.verify(deep=1)
