"""A key's form: the bytes that name an effect in the log and in the indexes.

The form keeps the order of the contract (strings by code point, then tuples by their parts, integers by value before
strings) under a comparison byte by byte, and can be turned back into the key as it was given. A string is `01` and
its UTF-8. A tuple is `02` and its parts one after the other: an integer is `10`, its length and its magnitude; a
string is `20`, its UTF-8 with `00` written as `00 ff`, and `00`.
"""

from __future__ import annotations

import json
from typing import Final

from journal.errors import Key
from journal.options import KEY_BYTES_MAX

_STRING: Final = b"\x01"
_TUPLE: Final = b"\x02"
_INTEGER_PART: Final = b"\x10"
_STRING_PART: Final = b"\x20"
_SURELY_SHORT_BYTES: Final = KEY_BYTES_MAX // 6
"""A form up to here has a JSON array within the limit: JSON writes no byte of it with more than six."""
_SIGN: Final = 0x8000
"""Lengths of magnitudes are written as this plus (or, for negative integers, minus) the number of bytes."""


def key_form(key: object) -> bytes:
    """The form of a key.

    Raises:
        TypeError: the key, or a part of it, is of another type (a `bool` too).
        ValueError: it is empty, longer than `KEY_BYTES_MAX` bytes, or holds a lone surrogate.
    """
    if isinstance(key, str):
        text = _utf8(key, key)
        if not 1 <= len(text) <= KEY_BYTES_MAX:
            raise _length_error(len(text), key)
        return _STRING + text
    if not isinstance(key, tuple):
        raise TypeError(f"a key is a str or a tuple of str and int, not {type(key).__name__}: {key!r}")
    if not key:
        raise ValueError("a key must not be empty: got ()")
    form = _TUPLE + b"".join(_part_form(part, key) for part in key)
    if len(form) > _SURELY_SHORT_BYTES:
        size = len(key_text(key_of(form)).encode())
        if size > KEY_BYTES_MAX:
            raise _length_error(size, key)
    return form


def prefix_form(prefix: object) -> bytes:
    """The bytes that the forms of all keys with this prefix begin with; a tuple matches first parts.

    Raises:
        TypeError, ValueError: as `key_form`, but an empty string or tuple matches every key of its kind.
    """
    if prefix == "" and isinstance(prefix, str):
        return _STRING
    if prefix == () and isinstance(prefix, tuple):
        return _TUPLE
    return key_form(prefix)


def has_prefix(form: bytes, prefix: bytes) -> bool:
    """Whether a key's form begins with the form of a prefix: characters of a string, whole parts of a tuple."""
    if not form.startswith(prefix):
        return False
    # After a string part a 00 that ff follows is a character of a longer string, not the end of the part.
    return prefix[:1] != _TUPLE or form[len(prefix) : len(prefix) + 1] != b"\xff"


def key_of(form: bytes) -> Key:
    """The key as it was given.

    Raises:
        ValueError: the bytes are no form.
    """
    kind, rest = form[:1], form[1:]
    if kind == _STRING:
        return rest.decode()
    if kind != _TUPLE:
        raise ValueError(f"no form of a key: {form[:40]!r}")
    parts: list[str | int] = []
    while rest:
        part, rest = _next_part(rest)
        parts.append(part)
    return tuple(parts)


def key_text(key: Key) -> str:
    """A key as logs and shells show it: a string as it is, a tuple as its JSON array."""
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


def check_name(name: object, what: str, bytes_max: int, *, empty: bool = False) -> str:
    """A stream's, operation's, actor's or cursor's name, checked.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty and may not be, too long, or holds a lone surrogate.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}: {name!r}")
    if not name and not empty:
        raise ValueError(f"{what} must not be empty")
    size = len(name) if name.isascii() else len(_utf8(name, name))
    if size > bytes_max:
        raise ValueError(f"{what} has {size} bytes of UTF-8, at most {bytes_max}: {name[:40]!r}…")
    return name if type(name) is str else str.__str__(name)


def _part_form(part: object, key: object) -> bytes:
    if isinstance(part, bool) or not isinstance(part, str | int):
        raise TypeError(f"a part of a key is a str or an int, not {type(part).__name__}: {key!r}")
    if isinstance(part, str):
        return _STRING_PART + _utf8(part, key).replace(b"\x00", b"\x00\xff") + b"\x00"
    if part.bit_length() > KEY_BYTES_MAX * 10 // 3:
        raise ValueError(f"a key has at most {KEY_BYTES_MAX} bytes; an integer of {part.bit_length()} bits is too long")
    magnitude = abs(part).to_bytes((part.bit_length() + 7) // 8, "big")
    if part >= 0:
        return _INTEGER_PART + (_SIGN + len(magnitude)).to_bytes(2, "big") + magnitude
    return _INTEGER_PART + (_SIGN - len(magnitude)).to_bytes(2, "big") + bytes(255 - byte for byte in magnitude)


def _next_part(rest: bytes) -> tuple[str | int, bytes]:
    kind = rest[:1]
    if kind == _INTEGER_PART and len(rest) >= 3:
        length = int.from_bytes(rest[1:3], "big") - _SIGN
        end = 3 + abs(length)
        if len(rest) >= end:
            magnitude = rest[3:end]
            if length >= 0:
                return int.from_bytes(magnitude, "big"), rest[end:]
            return -int.from_bytes(bytes(255 - byte for byte in magnitude), "big"), rest[end:]
    if kind == _STRING_PART:
        end = rest.find(b"\x00", 1)
        while end >= 0 and rest[end + 1 : end + 2] == b"\xff":
            end = rest.find(b"\x00", end + 2)
        if end > 0:
            return rest[1:end].replace(b"\x00\xff", b"\x00").decode(), rest[end + 1 :]
    raise ValueError(f"no form of a part of a key: {rest[:40]!r}")


def _utf8(text: str, key: object) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate cannot be written as UTF-8: {key!r}") from error


def _length_error(size: int, key: object) -> ValueError:
    shown = repr(key)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes of UTF-8, not {size}: {shown}")
