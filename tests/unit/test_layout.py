"""`journal/_storage/layout.py`: rows as bytes, their order, and the damage that each notices by itself."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from typing import Final

import pytest

from journal._core.keys import key_form
from journal._storage import layout
from journal._storage.layout import DamagedRowError
from journal.options import INDEX_KEY_BYTES_MAX, KEY_BYTES_MAX, STREAM_BYTES_MAX

DIGEST: Final = bytes(range(16))
HEAD: Final = b"\x93\x03\xc4\x02\x01k\x05"
POSITIONS: Final = (1, 255, 256, 2**32 - 1, 2**32, 2**63)
PARTS: Final = [(HEAD, b""), (HEAD, b'{"a":1}'), (b"", b""), (b"\x00" * 9, b"\xff" * 9)]


@pytest.mark.parametrize("head, payload", PARTS)
@pytest.mark.parametrize("position", POSITIONS)
def test_record_comes_back_as_it_was_framed(position: int, head: bytes, payload: bytes) -> None:
    """Digest, head and payload, each by itself."""
    value = layout.frame(position, DIGEST, head, payload)

    assert layout.unframe(position, value) == layout.Frame(DIGEST, head, payload)
    assert layout.head_of(position, value) == head


@pytest.mark.parametrize("head, payload", PARTS)
def test_any_changed_byte_of_a_record_is_noticed(head: bytes, payload: bytes) -> None:
    """Every byte of the frame, changed to every other value."""
    value = layout.frame(7, DIGEST, head, payload)

    for index, byte in itertools.product(range(len(value)), range(256)):
        if byte != value[index]:
            changed = value[:index] + bytes([byte]) + value[index + 1 :]
            with pytest.raises(DamagedRowError, match="its checksum is wrong"):
                layout.unframe(7, changed)


def test_any_two_swapped_bytes_of_a_record_are_noticed() -> None:
    """Head and payload cannot change places, nor their bytes."""
    value = layout.frame(7, DIGEST, HEAD, b'{"a":1}')

    for one, other in itertools.combinations(range(len(value)), 2):
        if value[one] != value[other]:
            changed = bytearray(value)
            changed[one], changed[other] = changed[other], changed[one]
            with pytest.raises(DamagedRowError):
                layout.unframe(7, bytes(changed))


def test_cut_or_lengthened_record_is_noticed() -> None:
    """Every shorter value, and a longer one."""
    value = layout.frame(7, DIGEST, HEAD, b'{"a":1}')

    for end in range(len(value)):
        with pytest.raises(DamagedRowError, match=f"it has only {end} bytes" if end < 24 else "checksum"):
            layout.unframe(7, value[:end])
    with pytest.raises(DamagedRowError):
        layout.unframe(7, value + b"\x00")


def test_record_at_another_position_is_noticed() -> None:
    """A record that was moved is not the one of its new place."""
    value = layout.frame(7, DIGEST, HEAD, b"")

    for position in (0, 6, 8, 263, 2**31, 2**32 + 6):
        with pytest.raises(DamagedRowError):
            layout.unframe(position, value)


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x00\x00\x00\x00", b"position", b"c" * 300])
@pytest.mark.parametrize("key", [b"\x05", b"\x08\x01k", b"\x09" + b"k" * 510])
def test_row_comes_back_as_it_was_sealed(key: bytes, content: bytes) -> None:
    """Its content, without the check."""
    assert layout.unseal(key, layout.seal(key, content)) == content


def test_any_changed_byte_of_a_row_is_noticed() -> None:
    """Every byte of its value and of its key, changed to every other value."""
    key, content = b"\x08\x01key", b"\x00\x00\x00\x00\x00\x00\x00\x07\x01"
    value = layout.seal(key, content)

    for index, byte in itertools.product(range(len(value)), range(256)):
        if byte != value[index]:
            with pytest.raises(DamagedRowError):
                layout.unseal(key, value[:index] + bytes([byte]) + value[index + 1 :])
    for index, byte in itertools.product(range(len(key)), range(256)):
        if byte != key[index]:
            with pytest.raises(DamagedRowError):
                layout.unseal(key[:index] + bytes([byte]) + key[index + 1 :], value)


def test_row_of_any_table_is_held_against_its_own_check() -> None:
    """A log record against its position, any other row against its key; a key that looks like the log's is neither."""
    rows = {
        b"\x08\x01key": layout.seal(b"\x08\x01key", b"content"),
        layout.log_key(7): layout.frame(7, DIGEST, HEAD, b""),
    }

    for key, value in rows.items():
        layout.check(key, value)
        for other in (layout.LOG, layout.LOG + key[1:4], layout.log_key(8), key + b"\x00", b"\x08\x01kez"):
            with pytest.raises(DamagedRowError):
                layout.check(other, value)


def test_cut_row_is_noticed() -> None:
    """Every shorter value; an empty one too."""
    value = layout.seal(b"\x08\x01key", b"content")

    for end in range(len(value)):
        with pytest.raises(DamagedRowError):
            layout.unseal(b"\x08\x01key", value[:end])


# The chain


def test_digest_is_over_the_one_before_the_position_and_the_head() -> None:
    """As the format says, so that others can follow it."""
    expected = hashlib.blake2b(DIGEST + (9).to_bytes(8, "big") + HEAD, digest_size=16).digest()

    assert layout.chain(DIGEST, 9, HEAD) == expected


def test_chain_tells_every_change_before_it() -> None:
    """Another digest before, another position or another head gives another digest."""
    digests = {
        layout.chain(before, position, head)
        for before in (DIGEST, DIGEST[::-1])
        for position in (1, 2)
        for head in (HEAD, HEAD + b"\x00", b"")
    }

    assert len(digests) == 12


def test_check_is_the_crc_of_the_format() -> None:
    """So that others can check it."""
    frame = layout.frame(9, DIGEST, HEAD, b"payload")
    row = layout.seal(b"\x08\x01key", b"content")

    assert int.from_bytes(frame[:4], "big") == zlib.crc32(frame[4:], 9)
    assert int.from_bytes(row[-4:], "big") == zlib.crc32(b"content", zlib.crc32(b"\x08\x01key"))


# Keys


@pytest.mark.parametrize("number", [0, 1, 255, 256, 2**32, 2**64 - 1])
def test_number_comes_back(number: int) -> None:
    """From eight bytes."""
    assert layout.unpack_u64(layout.pack_u64(number)) == number
    assert layout.position_of(layout.log_key(number)) == number


def test_numbers_sort_by_value() -> None:
    """Log records come in order of their positions."""
    numbers = [0, 1, 255, 256, 65_535, 65_536, 2**32, 2**63, 2**64 - 1]

    keys = [layout.log_key(number) for number in numbers]

    assert keys == sorted(keys)


def test_log_is_the_last_table() -> None:
    """So that LMDB appends to it: no other prefix sorts behind, and each is one byte of its own."""
    assert max(layout.TABLES) == layout.LOG
    assert {len(prefix) for prefix in layout.TABLES} == {1}
    assert layout.HEADER_KEY[:1] == layout.HEADER
    assert len(set(layout.TABLES.values())) == len(layout.TABLES)


@pytest.mark.parametrize("size", [2, 100, 494, 509, 510, 511, 512, KEY_BYTES_MAX, 3 * KEY_BYTES_MAX])
def test_index_key_of_any_form_fits_into_lmdb(size: int) -> None:
    """Short forms stand as they are; longer ones are cut, and their keys have all the same length."""
    form = key_form("k" * (min(size, KEY_BYTES_MAX + 1) - 1))

    key = layout.form_key(layout.STEP, form)

    assert len(key) <= INDEX_KEY_BYTES_MAX
    if len(form) <= layout.FORM_BYTES_WHOLE:
        assert key == layout.STEP + form
    else:
        assert len(key) == INDEX_KEY_BYTES_MAX
        assert key.startswith(layout.STEP + form[: layout.FORM_BYTES_KEPT])


def test_index_keys_of_forms_are_told_apart() -> None:
    """Also where they differ only past the cut, or one is the beginning of the other."""
    forms = [
        key_form("k" * length + end)
        for length in (492, 493, 494, 506, 507, 508, 509, 510, 600)
        for end in ("", "a", "b")
    ]

    assert len({layout.form_key(layout.STEP, form) for form in forms}) == len(set(forms))


def test_whole_form_never_looks_like_a_cut_one() -> None:
    """Their keys differ in length: that is how a list knows where to look for the rest."""
    longest_whole = layout.form_key(layout.STEP, key_form("k" * (layout.FORM_BYTES_WHOLE - 1)))
    shortest_cut = layout.form_key(layout.STEP, key_form("k" * layout.FORM_BYTES_WHOLE))

    assert len(longest_whole) - 1 == layout.FORM_BYTES_WHOLE
    assert len(shortest_cut) - 1 > layout.FORM_BYTES_WHOLE


@pytest.mark.parametrize("name", ["s", "é", "s" * STREAM_BYTES_MAX, "é" * (STREAM_BYTES_MAX // 2)])
def test_rows_of_a_stream_fit_into_lmdb(name: str) -> None:
    """With the longest name, too."""
    assert len(layout.stream_prefix(name)) + 8 <= INDEX_KEY_BYTES_MAX
    assert len(layout.STREAM + name.encode()) <= INDEX_KEY_BYTES_MAX


def test_rows_of_streams_are_never_mixed() -> None:
    """No stream's prefix is the beginning of another's, whatever their names begin with."""
    names = ["s", "st", "sta", "t", "s\x00", "é", "s" * 255]
    prefixes = [layout.stream_prefix(name) for name in names]

    for one, other in itertools.permutations(prefixes, 2):
        assert not one.startswith(other)


def test_identities_are_told_apart() -> None:
    """By stream, epoch and op_id, wherever one ends and the next begins."""
    keys = {
        layout.identity_key(stream, epoch, op_id)
        for stream in ("s", "st", "s\x00")
        for epoch in (1, 2, 256)
        for op_id in ("t", "", "o" * 4_096)
    }

    assert len(keys) == 27
    assert {len(key) for key in keys} == {17}
