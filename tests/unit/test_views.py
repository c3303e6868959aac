"""`journal/_storage/views.py`: what one transaction sees, and that damage is told and never taken for absence.

The rows are those of the golden journal, put into an environment of the test's own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, Self

import lmdb
import pytest

from journal._core.keys import key_form, prefix_form
from journal._core.ledger import EffectState
from journal._core.operations import append
from journal._core.payloads import digest
from journal._core.requests import OperationPage
from journal._core.rules import Rules
from journal._storage import layout, views
from journal._storage.transaction import StoreTransaction
from journal._storage.views import StoreView, encode
from journal.errors import CorruptRecordError
from journal.records import EffectEntry, Guarantee, OperationRecord, OwnerRow, Phase, StepRecord, StreamRow
from tests.unit.golden import JOURNAL, JOURNAL_ID, LONG, OWNER, OWNER_ROW, ROWS
from tests.unit.support import START, open_store

GENESIS: Final = digest(JOURNAL_ID.encode())
GOLDEN: Final = {
    bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(ROWS.read_text(encoding="utf-8")).items()
}
HEAD: Final = 33
STREAMS: Final = ("lieferungen-é", "orders", "none")
KEYS: Final[tuple[Any, ...]] = (
    *("absent", "asked", "by-hand", "charge-7", "cleared", "open", "released", "uncertain", "none", "a", "zzz"),
    *(LONG, LONG + "k", ("orders", 1, "order-7", "mail"), ("retry", -1), ("retry", 0), ("plan", 1)),
)
EVERY_PHASE: Final = frozenset(Phase)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    """An environment with the golden rows; nothing in these tests is committed to it."""
    folder = tmp_path_factory.mktemp("views")
    with lmdb.open(str(folder), map_size=2**22, sync=False, lib_version=0) as opened:
        with opened.begin(write=True) as txn:
            for key, value in GOLDEN.items():
                txn.put(key, value)
        yield opened


@pytest.fixture
def txn(env: lmdb.Environment) -> Iterator[lmdb.Transaction]:
    """A write transaction that is dropped."""
    opened = env.begin(write=True)
    try:
        yield opened
    finally:
        opened.abort()


@pytest.fixture
def view(txn: lmdb.Transaction) -> StoreView:
    """The journal as that transaction sees it."""
    return StoreView(txn, GENESIS)


class Writing(StoreView):
    """A view that looks as a write transaction does."""

    _likely_tables = StoreTransaction._likely_tables


def name_of(key: bytes) -> str:
    """A row as a test id."""
    return f"{layout.TABLES[key[:1]]}-{key[1:9].hex()}"


def questions() -> dict[str, Callable[[StoreView], Any]]:
    """Everything that can be asked of a view."""
    found: dict[str, Callable[[StoreView], Any]] = {
        "head": StoreView.head,
        "header": StoreView.raw_header,
        "streams": StoreView.streams,
        "owner": lambda view: view.owner(OWNER),
        "no owner": lambda view: view.owner(OWNER + 1),
        "step": lambda view: view.step(key_form(("plan", 1))),
        "no step": lambda view: view.step(key_form("none")),
        "cursor": lambda view: view.cursor("reader"),
        "no cursor": lambda view: view.cursor("none"),
        "all operations": lambda view: operations(view, None),
        "effects": listed,
        "unfinished": lambda view: listed(view, phases=frozenset({Phase.INTENT, Phase.RELEASED, Phase.FAILED})),
        "settled": lambda view: listed(view, phases=frozenset({Phase.ACCEPTED, Phase.UNCERTAIN})),
    }
    for key in KEYS:
        found[f"effect {key!r:.30}"] = of_key(key)
    for stream in STREAMS:
        found[f"stream {stream}"] = of_stream(stream)
    return found


def of_key(key: Any) -> Callable[[StoreView], Any]:
    """What is on record of a key."""
    return lambda view: view.effect(key_form(key))


def of_stream(stream: str) -> Callable[[StoreView], Any]:
    """All about a stream."""
    return lambda view: (
        view.stream(stream),
        view.sequence(stream),
        [view.identity(stream, 1, op_id) for op_id in ("1", "2", "order-7", "order-8", "none")],
        operations(view, stream),
    )


def operations(view: StoreView, stream: str | None, limit: int = 2) -> list[Any]:
    """All operations, page by page."""
    found: list[Any] = []
    page = OperationPage([], 0, ended=False)
    while not page.ended:
        page = view.operations(stream, page.through, limit)
        found += page.operations
    return found


def listed(
    view: StoreView, *, phases: frozenset[Phase] = EVERY_PHASE, prefix: bytes = b"", after: bytes = b""
) -> list[Any]:
    """Effects as the view lists them."""
    return view.effects(phases, prefix=prefix, after=after, limit=100).states


QUESTIONS: Final = questions()


# What is there


def test_tail_is_the_last_record(view: StoreView) -> None:
    """Its position, and its digest in the chain."""
    position, record_digest = view.tail()

    assert (position, view.head()) == (HEAD, HEAD)
    assert record_digest == view.frame(HEAD).digest


def test_tail_of_an_empty_log_is_the_journals_own_digest(txn: lmdb.Transaction, view: StoreView) -> None:
    """With rows before the log, and without any row at all."""
    for key in GOLDEN:
        if key[:1] == layout.LOG:
            txn.delete(key)
    assert view.tail() == (0, GENESIS)

    for key in GOLDEN:
        txn.delete(key)
    assert view.tail() == (0, GENESIS)
    assert (view.streams(), listed(view), operations(view, None)) == ([], [], [])


def test_record_is_decoded_by_its_tag(view: StoreView) -> None:
    """Operations, events of effects, steps."""
    kinds = [type(view.record(position)) for position in (1, 4, 31)]

    assert kinds == [OperationRecord, EffectEntry, StepRecord]


def test_position_without_a_record_is_damage(view: StoreView) -> None:
    """An index named it."""
    with pytest.raises(CorruptRecordError, match="an index names it, and it is not in the log") as caught:
        view.frame(HEAD + 1)

    assert caught.value.position == HEAD + 1


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_of_operations_come_in_log_order(view: StoreView, limit: int) -> None:
    """Each at most as long as asked for; the rest of the log between them is passed over."""
    assert [stored.position for stored in operations(view, None, limit)] == [1, 2, 3, 32]
    assert [stored.position for stored in operations(view, "orders", limit)] == [1, 32]
    assert [stored.position for stored in operations(view, "lieferungen-é", limit)] == [2, 3]


@pytest.mark.parametrize("stream", [None, "orders", "none"])
def test_page_past_the_end_is_empty(view: StoreView, stream: str | None) -> None:
    """It says that the log ended, and goes nowhere."""
    assert view.operations(stream, HEAD, 10) == OperationPage([], HEAD, ended=True)


def test_page_of_operations_is_bounded_in_bytes_and_records(view: StoreView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large operations and long gaps between operations end a page early, and it goes on from there."""
    monkeypatch.setattr(views, "PAGE_BYTES_MAX", 5)
    assert view.operations(None, 0, 100).through == 1
    assert view.operations("orders", 0, 100) == OperationPage([view.operation(1)], 1, ended=False)
    monkeypatch.setattr(views, "PAGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(views, "PAGE_SCAN_RECORDS", 4)

    assert view.operations(None, 0, 100) == OperationPage([view.operation(n) for n in (1, 2, 3)], 4, ended=False)
    assert view.operations(None, 4, 100) == OperationPage([], 8, ended=False)
    assert [stored.position for stored in operations(view, None, 100)] == [1, 2, 3, 32]


def test_stream_without_operations_is_empty(view: StoreView) -> None:
    """Nothing was ever appended to it."""
    assert (view.stream("none"), view.sequence("none"), operations(view, "none")) == (None, 0, [])


def test_operations_of_an_epoch_before_are_not_the_streams(txn: lmdb.Transaction, view: StoreView) -> None:
    """What stands at or before the epoch's position belongs to the one before."""
    key = layout.STREAM + b"orders"
    txn.put(key, layout.seal(key, encode(StreamRow(2, 1))))
    assert [stored.position for stored in operations(view, "orders")] == [32]
    assert view.sequence("orders") == 2

    txn.put(key, layout.seal(key, encode(StreamRow(3, 32))))
    assert (operations(view, "orders"), view.sequence("orders")) == ([], 0)
    assert view.identity("orders", 3, "order-7") is None


def test_sequence_of_the_last_stream_is_found_at_the_end_of_the_file(txn: lmdb.Transaction, view: StoreView) -> None:
    """Where no row follows a stream's last one."""
    for key in GOLDEN:
        if key[:1] > layout.SEQUENCE:
            txn.delete(key)

    assert view.sequence("lieferungen-é") == 2
    assert view.sequence("orders") == 2


def test_owner_is_found(view: StoreView) -> None:
    """As it was written with its first intent."""
    assert view.owner(OWNER) == OWNER_ROW
    assert view.owner(1) is None


def test_small_rows_are_listed_with_their_contents(view: StoreView) -> None:
    """Of one table alone."""
    assert [key for key, _ in view.rows(layout.OWNER)] == [layout.OWNER + layout.pack_u64(OWNER)]
    assert view.content(layout.STREAM + b"orders") == encode(StreamRow(1, 0))
    assert view.content(layout.STREAM + b"none") is None


def test_rows_are_paged_over_all_tables_but_the_log(view: StoreView) -> None:
    """In the order of their keys, as they are."""
    found: list[tuple[bytes, bytes]] = []
    while page := view.page_of_rows(found[-1][0] if found else b"", 3):
        assert len(page) <= 3
        found += page

    assert found == [(key, value) for key, value in GOLDEN.items() if key[:1] != layout.LOG]


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_log_is_paged(view: StoreView, limit: int) -> None:
    """Positions and values past a position."""
    found: list[tuple[int, bytes]] = []
    while page := view.page_of_log(len(found), limit):
        assert len(page) <= limit
        found += page

    assert found == [(position, GOLDEN[layout.log_key(position)]) for position in range(1, HEAD + 1)]


# Effects, listed


def test_effects_are_listed_in_the_order_of_keys(view: StoreView) -> None:
    """Over both tables, cut forms among the others, and from any key on."""
    every = [state.entry.key for state in listed(view)]

    assert every == sorted(every)
    assert len(every) == 11
    for index, form in enumerate(every):
        assert [state.entry.key for state in listed(view, after=form)] == every[index + 1 :]


def test_list_of_effects_ends_at_its_limit(view: StoreView) -> None:
    """And gives last events with their positions."""
    states = view.effects(EVERY_PHASE, prefix=b"", after=b"", limit=3).states

    assert [state.entry.key for state in states] == [key_form(key) for key in ("absent", "asked", "by-hand")]
    assert [view.effect(state.entry.key) for state in states] == states


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_effects_in_other_phases_are_passed_in_bounded_looks(
    view: StoreView, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A look ends after so many of them, says how far it came, and the next one finds the rest."""
    for phase in Phase:
        whole = listed(view, phases=frozenset({phase}))
        monkeypatch.setattr(views, "PAGE_SCAN_RECORDS", count)
        found: list[EffectState] = []
        looks, after = 0, b""
        while True:
            page = view.effects(frozenset({phase}), prefix=b"", after=after, limit=1)
            looks += 1
            found += page.states
            if page.through is None:
                break
            assert page.through > after
            after = page.through
        monkeypatch.undo()

        assert found == whole
        assert looks > len(whole) or count == 100


SIZES: Final = (491, 492, 493, 494, 495, 507, 508, 509, 510, 511, 600)


@pytest.fixture
def long_forms(txn: lmdb.Transaction) -> list[bytes]:
    """Effects with forms around the length at which they are cut, put in as their index has them."""
    forms = sorted(key_form("k" * size + end) for size in SIZES for end in ("", "a", "z")) + [
        key_form(("k" * size, number)) for size in (480, 495, 505) for number in (1, 2)
    ]
    for number, form in enumerate(forms):
        position = 1_000 + number
        entry = EffectEntry(Phase.INTENT, form, START, 0, START, 1, Guarantee.AT_MOST_ONCE, OWNER)
        txn.put(layout.log_key(position), layout.frame(position, bytes(16), encode(entry), b""))
        table = layout.UNFINISHED if number % 2 else layout.SETTLED
        key = layout.form_key(table, form)
        txn.put(key, layout.seal(key, layout.pack_u64(position) + bytes([Phase.INTENT])))
    return forms


def test_forms_that_were_cut_are_listed_in_their_order(view: StoreView, long_forms: list[bytes]) -> None:
    """The index has them by their digests, the list by the keys that they stand for."""
    listed_forms = [state.entry.key for state in listed(view, prefix=key_form("kkkk"))]

    assert listed_forms == sorted(form for form in long_forms if form[:1] == b"\x01")
    for index, form in enumerate(listed_forms):
        assert [state.entry.key for state in listed(view, prefix=key_form("kkkk"), after=form)] == listed_forms[
            index + 1 :
        ]
        assert view.effect(form) is not None


@pytest.mark.parametrize("size", [490, 492, 493, 494, 508, 509, 510, 550])
def test_prefix_longer_than_an_index_key_is_found(view: StoreView, long_forms: list[bytes], size: int) -> None:
    """As well as one that ends within the cut."""
    prefix = prefix_form("k" * size)

    found = [state.entry.key for state in listed(view, prefix=prefix)]

    assert found == sorted(form for form in long_forms if form.startswith(prefix))


@pytest.mark.parametrize("size", [480, 495, 505])
def test_tuple_prefix_matches_whole_parts_of_cut_forms(view: StoreView, long_forms: list[bytes], size: int) -> None:
    """Both keys that begin with the part, and no other."""
    found = [state.entry.key for state in listed(view, prefix=prefix_form(("k" * size,)))]

    assert found == [key_form(("k" * size, number)) for number in (1, 2)]


# What does not belong there


def put_row(txn: lmdb.Transaction, key: bytes, content: bytes) -> None:
    """Put a row that agrees with its own check."""
    txn.put(key, layout.seal(key, content))


def test_index_row_that_names_another_effect_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """The record says whose it is; the error has the key that was asked for."""
    put_row(txn, layout.form_key(layout.SETTLED, key_form("asked")), layout.pack_u64(7) + b"\x02")

    with pytest.raises(CorruptRecordError, match="the index has it for this effect") as caught:
        view.effect(key_form("asked"))

    assert (caught.value.position, caught.value.key) == (7, "asked")


@pytest.mark.parametrize("position", [1, 31])
def test_index_row_that_names_no_event_is_damage(txn: lmdb.Transaction, view: StoreView, position: int) -> None:
    """An operation or a step is no event of an effect."""
    put_row(txn, layout.form_key(layout.SETTLED, key_form("asked")), layout.pack_u64(position) + b"\x02")

    with pytest.raises(CorruptRecordError, match="the index has it for this effect"):
        view.effect(key_form("asked"))
    with pytest.raises(CorruptRecordError, match="the index has it for this effect") as caught:
        view.effect_entry(position)
    assert caught.value.key is None


def test_index_row_that_names_no_record_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """It is no evidence that the effect did not run; the error has its key."""
    put_row(txn, layout.form_key(layout.SETTLED, key_form("asked")), layout.pack_u64(99) + b"\x02")

    with pytest.raises(CorruptRecordError, match="it is not in the log") as caught:
        view.effect(key_form("asked"))

    assert (caught.value.position, caught.value.key) == (99, "asked")


@pytest.mark.parametrize("position", [1, 4])
def test_index_row_that_names_no_step_is_damage(txn: lmdb.Transaction, view: StoreView, position: int) -> None:
    """Or another one's."""
    put_row(txn, layout.form_key(layout.STEP, key_form("s")), layout.pack_u64(position))

    with pytest.raises(CorruptRecordError, match="the index has it for this step") as caught:
        view.step(key_form("s"))

    assert caught.value.key == "s"


def test_index_row_that_names_another_step_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """The record has another key."""
    put_row(txn, layout.form_key(layout.STEP, key_form("s")), layout.pack_u64(31))

    with pytest.raises(CorruptRecordError, match="the index has it for this step"):
        view.step(key_form("s"))


def test_identity_that_names_another_operation_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """It would answer a resend with something else."""
    put_row(txn, layout.identity_key("orders", 1, "order-7"), layout.pack_u64(2))

    with pytest.raises(CorruptRecordError, match="the index has it for op_id 'order-7'") as caught:
        view.identity("orders", 1, "order-7")

    assert (caught.value.position, caught.value.stream) == (2, "orders")


@pytest.mark.parametrize("position, sequence", [(2, 1), (1, 2)])
def test_sequence_that_names_another_operation_is_damage(
    txn: lmdb.Transaction, view: StoreView, position: int, sequence: int
) -> None:
    """Of another stream, or with another sequence."""
    put_row(txn, layout.stream_prefix("orders") + layout.pack_u64(position), layout.pack_u64(sequence))

    with pytest.raises(CorruptRecordError, match="the index has it for stream 'orders'"):
        operations(view, "orders")


def test_index_that_names_no_operation_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """An effect's event is none."""
    with pytest.raises(CorruptRecordError, match="it is no operation"):
        view.operation(4)


def test_operation_without_its_payload_is_damage(txn: lmdb.Transaction, view: StoreView) -> None:
    """The head says how long the payload is."""
    frame = view.frame(1)
    txn.put(layout.log_key(1), layout.frame(1, frame.digest, frame.head, frame.payload[:-1]))

    with pytest.raises(CorruptRecordError, match="its payload has another length") as caught:
        view.operation(1)

    assert (caught.value.position, caught.value.stream) == (1, "orders")


@pytest.mark.parametrize("head", [b"", b"\xc1", b"\x92\x07\x01", b"\x93\x03\xc4", b"\xa1\xff", encode([1, "orders"])])
def test_record_that_cannot_be_decoded_is_damage(txn: lmdb.Transaction, view: StoreView, head: bytes) -> None:
    """Though its checksum is right."""
    txn.put(layout.log_key(4), layout.frame(4, bytes(16), head, b""))

    with pytest.raises(CorruptRecordError, match="it cannot be decoded: ") as caught:
        view.record(4)

    assert caught.value.position == 4


@pytest.mark.parametrize("content", [b"", b"\xc1", encode("text"), encode([1])])
def test_row_that_cannot_be_decoded_is_damage(txn: lmdb.Transaction, view: StoreView, content: bytes) -> None:
    """Though its checksum is right; the table is named."""
    put_row(txn, layout.CURSOR + b"reader", content)

    with pytest.raises(CorruptRecordError, match="a row of cursors: "):
        view.cursor("reader")


def test_page_of_effects_ends_early_where_they_are_large(view: StoreView, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may have megabytes: a page holds no more than it needs to go on."""
    whole = view.effects(frozenset({Phase.ACCEPTED}), prefix=b"", after=b"", limit=100).states
    monkeypatch.setattr(views, "PAGE_BYTES_MAX", 1)
    found: list[EffectState] = []
    after: bytes | None = b""
    while after is not None:
        page = view.effects(frozenset({Phase.ACCEPTED}), prefix=b"", after=after, limit=100)
        assert len(page.states) <= 1
        found += page.states
        after = page.through

    assert found == whole != []


@pytest.mark.parametrize("position", [1, 2, 4, 31])
def test_record_that_is_missing_is_found_by_its_gap(txn: lmdb.Transaction, view: StoreView, position: int) -> None:
    """A walk over the log counts."""
    txn.delete(layout.log_key(position))

    with pytest.raises(CorruptRecordError, match="it is missing from the log") as caught:
        operations(view, None)

    assert caught.value.position == position


# Damage


def outcome(ask: Callable[[StoreView], Any], view: StoreView) -> Any:
    """An answer, or that damage was told."""
    try:
        return ask(view)
    except CorruptRecordError:
        return CorruptRecordError


@pytest.fixture(scope="module")
def sound(env: lmdb.Environment) -> dict[str, Any]:
    """The answers to all questions before anything is damaged."""
    with env.begin() as txn:
        return {name: ask(StoreView(txn, GENESIS)) for name, ask in QUESTIONS.items()}


@pytest.mark.parametrize("key", GOLDEN, ids=name_of)
def test_damaged_row_is_told_or_does_not_matter(
    txn: lmdb.Transaction, view: StoreView, sound: dict[str, Any], key: bytes
) -> None:
    """Whatever byte of a row changed, every question is answered as before or refused: never with something else."""
    value = GOLDEN[key]
    places = sorted({0, 3, 4, 8, 12, 24, 30, len(value) // 2, len(value) - 5, len(value) - 1} & set(range(len(value))))

    for place in places:
        txn.put(key, value[:place] + bytes([value[place] ^ 0x10]) + value[place + 1 :])
        refused = 0
        for name, ask in QUESTIONS.items():
            answer = outcome(ask, view)
            refused += answer is CorruptRecordError
            assert answer is CorruptRecordError or answer == sound[name], (name, place)
        assert refused or key[:1] == layout.LOG
    txn.put(key, value)


@pytest.mark.parametrize("key", GOLDEN, ids=name_of)
def test_every_changed_byte_of_a_row_is_noticed_by_who_reads_it(
    txn: lmdb.Transaction, view: StoreView, key: bytes
) -> None:
    """Each byte of each row, one after the other."""
    value = GOLDEN[key]

    for place in range(len(value)):
        txn.put(key, value[:place] + bytes([value[place] ^ 0x01]) + value[place + 1 :])
        with pytest.raises(CorruptRecordError):
            if key[:1] == layout.LOG:
                view.frame(layout.position_of(key))
            else:
                view.content(key)
    txn.put(key, value)


def test_damaged_operation_blocks_its_stream_and_not_the_journal(txn: lmdb.Transaction, view: StoreView) -> None:
    """The indexes know whose it is: a walk over all streams tells it with the stream."""
    value = GOLDEN[layout.log_key(2)]
    txn.put(layout.log_key(2), value[:-1] + bytes([value[-1] ^ 1]))

    with pytest.raises(CorruptRecordError) as caught:
        operations(view, None)

    assert (caught.value.position, caught.value.stream) == (2, "lieferungen-é")
    assert [stored.position for stored in operations(view, "orders")] == [1, 32]


def test_damaged_event_of_an_effect_does_not_block_reading(txn: lmdb.Transaction, view: StoreView) -> None:
    """It is no operation, so it is none of a reader's."""
    value = GOLDEN[layout.log_key(5)]
    txn.put(layout.log_key(5), value[:-1] + bytes([value[-1] ^ 1]))

    assert [stored.position for stored in operations(view, None)] == [1, 2, 3, 32]
    assert outcome(of_key(("orders", 1, "order-7", "mail")), view) is CorruptRecordError


@pytest.mark.parametrize("key", [key for key in GOLDEN if key[:1] not in (layout.LOG, layout.STREAM)], ids=name_of)
def test_damaged_index_row_does_not_block_the_log(
    txn: lmdb.Transaction, view: StoreView, sound: dict[str, Any], key: bytes
) -> None:
    """A walk over all streams reads the log and the streams' rows alone: whatever other row is damaged, it goes on."""
    value = GOLDEN[key]
    txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))

    assert view.head() == HEAD
    assert operations(view, None) == sound["all operations"]


@pytest.mark.parametrize("is_gone", [True, False])
def test_operation_of_a_stream_whose_row_is_damaged_is_not_given(
    txn: lmdb.Transaction, view: StoreView, is_gone: bool
) -> None:
    """The row alone says whether the stream was reset; those before it are given."""
    key = layout.STREAM + "lieferungen-é".encode()
    txn.put(key, GOLDEN[key][:-1] + bytes([GOLDEN[key][-1] ^ 1]))
    if is_gone:
        txn.delete(key)

    assert [stored.position for stored in view.operations(None, 0, 1).operations] == [1]
    assert outcome(lambda view: operations(view, None), view) is CorruptRecordError


@pytest.mark.parametrize("position", [position for position in range(1, HEAD + 1) if position not in (1, 2, 3, 32)])
def test_damaged_event_does_not_block_reading_on_from_it(txn: lmdb.Transaction, view: StoreView, position: int) -> None:
    """Wherever a page happened to end."""
    value = GOLDEN[layout.log_key(position)]
    txn.put(layout.log_key(position), value[:-1] + bytes([value[-1] ^ 1]))

    for after in (position - 1, position):
        if after < HEAD:
            found = view.operations(None, after, 10).operations
            assert [stored.position for stored in found] == [place for place in (1, 2, 3, 32) if place > after]


def test_damaged_row_of_a_stream_does_not_block_another(txn: lmdb.Transaction, view: StoreView) -> None:
    """The streams lie side by side in their index."""
    key = layout.stream_prefix("lieferungen-é") + layout.pack_u64(2)
    txn.put(key, GOLDEN[key][:-1] + bytes([GOLDEN[key][-1] ^ 1]))

    assert [stored.position for stored in operations(view, "orders")] == [1, 32]
    assert outcome(lambda view: operations(view, "lieferungen-é"), view) is CorruptRecordError


def test_damaged_row_of_a_stream_does_not_block_appends_to_another(txn: lmdb.Transaction, view: StoreView) -> None:
    """Its last sequence is known without the rows beside it."""
    key = layout.stream_prefix("lieferungen-é") + layout.pack_u64(2)
    txn.put(key, GOLDEN[key][:-1] + bytes([GOLDEN[key][-1] ^ 1]))

    assert view.sequence("orders") == 2


def test_position_that_is_damaged_in_its_place_never_shortens_a_stream(tmp_path: Path) -> None:
    """Every row's position changed to every other: the rows are out of order, or one does not agree with its check."""
    store = open_store(tmp_path)
    for number in range(6):
        store.commit(next(append("s", [(f"{number}", number)], "", None, Rules())).decide)
    genesis = digest(store.header.journal_id.encode())
    store.close()
    image, prefix = (tmp_path / "data.mdb").read_bytes(), layout.stream_prefix("s")

    for before, after in itertools.permutations(range(1, 7), 2):
        changed = image.replace(prefix + layout.pack_u64(before), prefix + layout.pack_u64(after))
        (tmp_path / "data.mdb").write_bytes(changed)
        with lmdb.open(str(tmp_path), readonly=True, lock=False, lib_version=0) as opened, opened.begin() as txn:
            answer = outcome(lambda view: operations(view, "s"), StoreView(txn, genesis))
        assert answer is CorruptRecordError, (before, after)


@pytest.mark.parametrize("key", GOLDEN, ids=name_of)
def test_damaged_row_is_never_found_at_a_glance(txn: lmdb.Transaction, view: StoreView, key: bytes) -> None:
    """What is found agrees with its checks, and is what was there."""

    def found() -> list[Any]:
        return [outcome(methodcaller("glance", key_form(asked)), view) for asked in KEYS]

    value, before = GOLDEN[key], found()
    txn.put(key, value[:-1] + bytes([value[-1] ^ 0x10]))

    for answer, expected in zip(found(), before, strict=True):
        assert answer is CorruptRecordError or answer == expected


def test_glance_does_not_vouch_for_what_it_does_not_find(txn: lmdb.Transaction, view: StoreView) -> None:
    """A row hidden by its own key is missed; the look that an intent rests on refuses."""
    key = layout.form_key(layout.SETTLED, key_form("asked"))
    hidden(txn, key, key[:-1] + b"e")

    assert view.glance(key_form("asked")) is None
    with pytest.raises(CorruptRecordError):
        view.effect(key_form("asked"))


def hidden(txn: lmdb.Transaction, key: bytes, other: bytes) -> None:
    """Move a row beside its place: a flipped byte in its key, as a damaged page would have it."""
    value = GOLDEN[key]
    txn.delete(key)
    txn.put(other, value)


@pytest.mark.parametrize(
    "key, ask",
    [
        (layout.form_key(layout.SETTLED, key_form("asked")), of_key("asked")),
        (layout.form_key(layout.UNFINISHED, key_form("open")), of_key("open")),
        (layout.STREAM + b"orders", of_stream("orders")),
        (layout.CURSOR + b"reader", lambda view: view.cursor("reader")),
        (layout.OWNER + layout.pack_u64(OWNER), lambda view: view.owner(OWNER)),
        (layout.form_key(layout.STEP, key_form(("plan", 1))), lambda view: view.step(key_form(("plan", 1)))),
        (layout.identity_key("orders", 1, "order-7"), lambda view: view.identity("orders", 1, "order-7")),
    ],
)
@pytest.mark.parametrize("change", [1, -1])
def test_row_that_is_hidden_by_its_own_key_is_not_taken_for_missing(
    txn: lmdb.Transaction, view: StoreView, key: bytes, ask: Callable[[StoreView], Any], change: int
) -> None:
    """The row beside the place does not agree with its key: nothing is believed to be absent there."""
    hidden(txn, key, key[:-1] + bytes([key[-1] + change]))

    assert outcome(ask, view) is CorruptRecordError


@pytest.mark.parametrize("change", [b"\xff" * 8, b"\x00" * 7 + b"\x02"])
def test_sequence_beside_a_damaged_row_is_not_believed(txn: lmdb.Transaction, view: StoreView, change: bytes) -> None:
    """A stream's last row that moved would give out a sequence again."""
    hidden(txn, layout.stream_prefix("orders") + layout.pack_u64(32), layout.stream_prefix("orders") + change)

    with pytest.raises(CorruptRecordError):
        view.sequence("orders")


@pytest.fixture(scope="module")
def image() -> bytes:
    """The golden data file."""
    return JOURNAL.read_bytes()


@pytest.mark.parametrize("key", GOLDEN, ids=name_of)
def test_key_that_is_damaged_in_its_place_is_told_or_does_not_matter(
    tmp_path: Path, image: bytes, sound: dict[str, Any], key: bytes
) -> None:
    """A flipped byte in a key leaves its row where it was: a search may miss it, a scan may take it for the end.

    Whatever comes of it, every question is answered as before or refused.
    """
    for place in sorted({0, 1, 2, len(key) // 2, len(key) - 1}):
        for mask in (0x01, 0x80):
            changed = key[:place] + bytes([key[place] ^ mask]) + key[place + 1 :]
            (tmp_path / "data.mdb").write_bytes(image.replace(key, changed))
            with lmdb.open(str(tmp_path), readonly=True, lock=False, lib_version=0) as opened, opened.begin() as txn:
                # A view of its own for each question, and one for all, whose searches begin where the last one ended.
                shared = Writing(txn, GENESIS)
                for (name, ask), is_shared in itertools.product(QUESTIONS.items(), (False, True)):
                    answer = outcome(ask, shared if is_shared else StoreView(txn, GENESIS))
                    # A journal without its header is not opened.
                    is_refused = answer is CorruptRecordError or (name, answer) == ("header", None)
                    assert is_refused or answer == sound[name], (name, place, mask)


class Disordered:
    """A cursor over a page whose keys are out of order: what it is moved to is not what it finds."""

    def __init__(self, found: list[tuple[bytes, bytes]]) -> None:
        self._found = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def set_range(self, key: bytes) -> bool:
        return True

    def prev(self) -> bool:
        self._found.pop(0)
        return True

    def item(self) -> tuple[bytes, bytes]:
        return self._found[0]


class DisorderedTransaction:
    """A transaction with such cursors, in which nothing is found by its key."""

    def __init__(self, *found: bytes) -> None:
        self._found = [(key, layout.seal(key, b"")) for key in found]

    def get(self, key: bytes) -> None:
        return None

    def cursor(self) -> Disordered:
        return Disordered(list(self._found))


@pytest.mark.parametrize("found", [(b"\x07\x01a",), (b"\x07\x01z", b"\x07\x01z"), (b"\x07\x01z", b"\x07\x01k")])
def test_page_out_of_order_is_damage(found: tuple[bytes, ...]) -> None:
    """A search in it proves nothing: what comes next is not past the key, or what comes before is not before it."""
    transaction: Any = DisorderedTransaction(*found)

    with pytest.raises(CorruptRecordError, match="the index is out of order") as caught:
        StoreView(transaction, GENESIS).step(key_form("k"))

    assert caught.value.key == "k"


class BrokenTransaction:
    """A transaction whose pages LMDB cannot read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, key: bytes) -> bytes:
        raise self._error

    def cursor(self) -> BrokenCursor:
        return BrokenCursor(self._error)


class BrokenCursor(Disordered):
    """A cursor that cannot be moved."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    def set_range(self, key: bytes) -> bool:
        raise self._error

    def last(self) -> bool:
        raise self._error


@pytest.mark.parametrize("error", [lmdb.CorruptedError("bad"), lmdb.PageNotFoundError("gone")])
@pytest.mark.parametrize(
    "name", ["head", "streams", "cursor", "effect 'asked'", "stream orders", "effects", "all operations"]
)
def test_page_that_lmdb_cannot_read_is_damage(error: Exception, name: str) -> None:
    """LMDB's own errors of that kind come out as ours, from every kind of look."""
    transaction: Any = BrokenTransaction(error)

    with pytest.raises(CorruptRecordError, match="a page of the data file: "):
        QUESTIONS[name](StoreView(transaction, GENESIS))


def test_rows_of_an_unknown_table_are_named_so(txn: lmdb.Transaction, view: StoreView) -> None:
    """A damaged key may have any prefix."""
    txn.put(b"\x77key", b"value")

    with pytest.raises(CorruptRecordError, match="a row of an unknown table: its checksum is wrong"):
        view.content(b"\x77key")


def test_owner_row_is_what_others_need() -> None:
    """So that this file notices when a field is added without a thought for the rows in the field."""
    assert OwnerRow.__struct_fields__ == ("pid", "started", "boot", "namespace", "lock_inode")


def test_file_of_these_tests_is_not_the_golden_one(env: lmdb.Environment) -> None:
    """Nothing here writes into `tests/data`."""
    assert Path(env.path()).resolve() != ROWS.parent.resolve()
    with env.begin() as txn:
        assert {bytes(key): bytes(value) for key, value in txn.cursor()} == GOLDEN
