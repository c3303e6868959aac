"""The layout on disk: keys and values of the one table, and the checks that each carries.

Everything lies in LMDB's unnamed database, each kind of row under a prefix of one byte. Named databases would cost a
page more in every commit; `docs/internals/format.md` has the measurement. The log comes last, so that LMDB appends to
it and packs its pages.

Every row carries a CRC-32 over its key and value (`check`), which each read verifies; a log record carries also its
place in the digest chain, which `verify` follows.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

import msgspec

from journal._core.payloads import DIGEST_BYTES, digest
from journal.options import INDEX_KEY_BYTES_MAX

HEADER: Final = b"\x01"
STREAM: Final = b"\x02"
CURSOR: Final = b"\x03"
OWNER: Final = b"\x04"
SEQUENCE: Final = b"\x05"
IDENTITY: Final = b"\x06"
STEP: Final = b"\x07"
UNFINISHED: Final = b"\x08"
SETTLED: Final = b"\x09"
FLOOR: Final = b"\x0a"
SNAPSHOT: Final = b"\x0b"
PRUNED: Final = b"\x0c"
DROPPING: Final = b"\x0d"
LOG: Final = b"\xff"

TABLES: Final = {
    HEADER: "header",
    STREAM: "streams",
    CURSOR: "cursors",
    OWNER: "owners",
    SEQUENCE: "sequences",
    IDENTITY: "identities",
    STEP: "steps",
    UNFINISHED: "unfinished",
    SETTLED: "settled",
    FLOOR: "floors",
    SNAPSHOT: "snapshots",
    PRUNED: "pruned",
    DROPPING: "droppings",
    LOG: "log",
}
"""The name of each prefix, as findings and documents use it."""

HEADER_KEY: Final = HEADER + b"journal"
RESTORED_KEY: Final = HEADER + b"restored"

_U64: Final = struct.Struct(">Q")
pack_u64: Final = _U64.pack
"""A number as eight bytes that sort by value."""
_pack_u32: Final = struct.Struct(">I").pack
_RECORD: Final = struct.Struct(f">II{DIGEST_BYTES}s")
"""A log record's frame: check, bytes of the head, digest. The head and the payload follow."""
_CHECKED: Final = struct.Struct(f">I{DIGEST_BYTES}s")
"""The same without the check, which covers it."""
_FOLD: Final = 4_294_967_291
"""The largest prime of 32 bits: the check of a record starts with its position modulo this, which changes with any byte
of it."""

LOG_KEY_BYTES: Final = 9

FORM_BYTES_WHOLE: Final = INDEX_KEY_BYTES_MAX - 2
"""Forms up to here stand in an index as they are; longer ones are cut, and their row has the longest key."""
FORM_BYTES_KEPT: Final = INDEX_KEY_BYTES_MAX - 1 - DIGEST_BYTES
"""The bytes of a longer form that its row's key begins with, before its digest."""


class DamagedRowError(Exception):
    """A row does not agree with its own check."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A log record as bytes: its digest in the chain, its head (msgpack) and its payload (JSON, or nothing)."""

    digest: bytes
    head: bytes
    payload: bytes


def unpack_u64(data: bytes) -> int:
    """The number that eight bytes stand for."""
    number: int = _U64.unpack(data)[0]
    return number


def log_key(position: int) -> bytes:
    """The key of a log record."""
    return LOG + pack_u64(position)


def position_of(key: bytes) -> int:
    """The position in a log record's key."""
    number: int = _U64.unpack_from(key, 1)[0]
    return number


def chain(before: bytes, position: int, head: bytes) -> bytes:
    """The digest of a record: over the one before, its position and its head (which holds the payload's hash)."""
    return digest(before + pack_u64(position) + head)


def frame(position: int, record_digest: bytes, head: bytes, payload: bytes) -> bytes:
    """The value of a log record."""
    body = _CHECKED.pack(len(head), record_digest) + head + payload
    return _pack_u32(crc32(body, position % _FOLD)) + body


def unframe(position: int, value: bytes) -> Frame:
    """The parts of a log record.

    Raises:
        DamagedRowError: the record is not what was written at this position.
    """
    head = head_of(position, value)
    return Frame(raw_digest(value), head, value[_RECORD.size + len(head) :])


def head_of(position: int, value: bytes) -> bytes:
    """The head of a log record, all of which was checked: what most readers want, and half of the work.

    Raises:
        DamagedRowError: the record is not what was written at this position.
    """
    try:
        check, head_bytes, _ = _RECORD.unpack_from(value)
    except struct.error:
        raise DamagedRowError(f"it has only {len(value)} bytes") from None
    if crc32(value[4:], position % _FOLD) != check:
        raise DamagedRowError("its checksum is wrong")
    return value[_RECORD.size : _RECORD.size + head_bytes]


def raw_digest(value: bytes) -> bytes:
    """The digest that a record says it has, whether or not the record is sound."""
    return value[8 : 8 + DIGEST_BYTES]


def seal(key: bytes, content: bytes) -> bytes:
    """The value of a row outside the log: its content and the check over both."""
    return content + _pack_u32(crc32(content, crc32(key)))


def unseal(key: bytes, value: bytes) -> bytes:
    """The content of a row outside the log.

    Raises:
        DamagedRowError: key and value do not belong together.
    """
    content, check = value[:-4], value[-4:]
    if _pack_u32(crc32(content, crc32(key))) != check:
        raise DamagedRowError("its checksum is wrong")
    return content


def check(key: bytes, value: bytes) -> None:
    """Hold a row of any table against its own check.

    Raises:
        DamagedRowError: key and value do not belong together.
    """
    if key[:1] == LOG and len(key) == LOG_KEY_BYTES:
        head_of(position_of(key), value)
    else:
        unseal(key, value)


def form_key(table: bytes, form: bytes) -> bytes:
    """The key of the row that an index has for a key's form."""
    if len(form) <= FORM_BYTES_WHOLE:
        return table + form
    return table + form[:FORM_BYTES_KEPT] + digest(form)


def stream_prefix(name: str) -> bytes:
    """What the keys of a stream's rows among the sequences begin with; the row's position follows."""
    text = name.encode()
    return SEQUENCE + len(text).to_bytes(1, "big") + text


def identity_key(stream: str, epoch: int, op_id: str) -> bytes:
    """The key of the row that knows an op_id of a stream's epoch."""
    text = stream.encode()
    return IDENTITY + digest(len(text).to_bytes(1, "big") + text + pack_u64(epoch) + op_id.encode())
