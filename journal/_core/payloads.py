"""How users' values become bytes and come back: JSON by msgspec, checked before anything is written.

A value is returned as decoded from its encoding, the first time as on every later call. So what would come back as
something else is refused here, with the path of the offending part.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from typing import Any, Final

import msgspec

from journal._core.texts import error_text
from journal.options import VALUE_DEPTH_MAX

_encode_json: Final = msgspec.json.Encoder().encode
_encode_canonical_json: Final = msgspec.json.Encoder(order="deterministic").encode
_encode_canonical_msgpack: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_json: Final = msgspec.json.Decoder().decode

DIGEST_BYTES: Final = 16
"""Bytes of every digest in the journal: BLAKE2b, 128 bits."""
_NO_BYTES: Final = hashlib.blake2b(digest_size=DIGEST_BYTES)
"""Copied for each digest, which is faster than its making."""


_JSON_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


class NotOfTypeError(Exception):
    """A stored value that today's type does not decode."""


class ValueRejectedError(Exception):
    """A value that could not come back as it was given; the text says where and why."""


def digest(data: bytes) -> bytes:
    """The digest of some bytes, `DIGEST_BYTES` long."""
    state = _NO_BYTES.copy()
    state.update(data)
    return state.digest()


def check_type(expected: Any, name: str) -> None:
    """Refuse a type that nothing could be decoded into.

    Raises:
        TypeError: msgspec does not support it.
    """
    if expected is not None:
        try:
            _decoder_of(expected)
        except Exception as error:
            raise TypeError(f"{name}={expected!r} is no type that values can be decoded into: {error}") from error


def _decoder_of(expected: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _kept_decoder_of(expected)
    except TypeError:
        return msgspec.json.Decoder(expected)  # a type that cannot be hashed, or none at all


@functools.lru_cache(maxsize=256)
def _kept_decoder_of(expected: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(expected)


def decode_value(data: bytes, expected: Any = None) -> Any:
    """The value that some JSON stands for, as the expected type where there is one.

    Raises:
        msgspec.DecodeError: it is no JSON.
        NotOfTypeError: it is not of the expected type; the text says where.
    """
    if expected is None:
        return _decode_json(data)
    try:
        return _decoder_of(expected).decode(data)
    except msgspec.ValidationError as error:
        raise NotOfTypeError(str(error)) from error
    except (msgspec.DecodeError, RecursionError, MemoryError):
        raise
    except Exception as error:
        # A user's `__post_init__` may raise anything.
        raise NotOfTypeError(error_text(error)) from error


def keep_value(value: object, returns: Any, bytes_max: int) -> tuple[bytes, Any]:
    """The JSON of an effect's value, and the value as it will come back.

    Raises:
        ValueRejectedError: it does not come back equal (or as `returns`), is too long or nested too deep.
    """
    return _kept(value, returns, bytes_max, "pass returns= with its type")


def _kept(value: object, returns: Any, bytes_max: int, advice: str) -> tuple[bytes, Any]:
    data, decoded = _checked(_encode_json, value, returns, bytes_max, advice)
    if returns is not None:
        try:
            _decode_json(data)
        except Exception as error:
            # A type may take what is no JSON (`msgspec.Raw` does); nobody else could read the record.
            raise ValueRejectedError(f"it is no JSON: {error_text(error)}") from error
    return data, decoded


def keep_state(state: object, expected: Any, bytes_max: int) -> bytes:
    """The JSON of a stream's state. The order of its maps is kept: what an application does may hang on it.

    Raises:
        ValueRejectedError: as `keep_value`.
    """
    return _kept(state, expected, bytes_max, "give the reducer the state's type")[0]


def keep_operation(operation: object, expected: Any, bytes_max: int) -> tuple[bytes, Any]:
    """The canonical JSON of an operation (keys of maps sorted), and the operation as it will come back.

    Raises:
        ValueRejectedError: it could not be read back as the declared type, is too long or nested too deep.
    """
    return _checked(encode_canonical, operation, expected, bytes_max, "open the journal with operation= its type")


def encode_canonical(value: object) -> bytes:
    """JSON in which equal values have equal bytes, whatever the order of their maps and sets.

    Raises:
        TypeError, OverflowError, ValueError, RecursionError: it cannot be encoded.
    """
    try:
        return _encode_canonical_json(value)
    except TypeError:
        # Sorting wants string keys; maps with other keys become such maps first.
        return _encode_canonical_json(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def fingerprint(request: object) -> bytes | None:
    """What binds a key to a request; `None` binds nothing.

    Raises:
        TypeError: the request cannot be encoded.
    """
    if request is None:
        return None
    try:
        return digest(_encode_request(request))
    except Exception as error:
        raise TypeError(f"request= cannot be encoded as JSON: {error}; pass what it is made of instead") from error


def _encode_request(request: object) -> bytes:
    """Bytes that tell apart what JSON would not: bytes and their base64, NaN and null."""
    try:
        return _encode_canonical_msgpack(request)
    except (TypeError, OverflowError):
        # Maps whose keys are no strings, and integers beyond 64 bits.
        return b"json" + encode_canonical(request)


def _checked(encode: Any, value: object, expected: Any, bytes_max: int, advice: str) -> tuple[bytes, Any]:
    try:
        data = encode(value)
    except Exception as error:
        where = _first_difference(value) if expected is None else None
        raise ValueRejectedError(where or f"it cannot be encoded: {error_text(error)}") from error
    if len(data) > bytes_max:
        raise ValueRejectedError(f"it has {len(data)} bytes as JSON, at most {bytes_max} can be kept")
    if _is_deep(data):
        raise ValueRejectedError(f"it is nested deeper than {VALUE_DEPTH_MAX} levels")
    try:
        decoded = decode_value(data, expected)
    except NotOfTypeError as error:
        raise ValueRejectedError(f"it does not come back as {expected!r}: {error}") from error
    except Exception as error:
        raise ValueRejectedError(f"it does not come back: {error_text(error)}") from error
    if expected is None and not _is_equal(value, decoded):
        where = _first_difference(value) or "it does not come back equal"
        raise ValueRejectedError(f"{where}; {advice}")
    return data, decoded


def _is_equal(value: object, decoded: object) -> bool:
    try:
        return bool(value == decoded)
    except Exception:  # noqa: BLE001 - a user's __eq__ may raise anything; then it is not equal
        return False


def _is_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= VALUE_DEPTH_MAX:
        return False
    level = 0
    for bracket in _JSON_STRING.sub(b"", data).translate(None, delete=_NO_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > VALUE_DEPTH_MAX:
            return True
    return False


def _first_difference(value: object) -> str | None:
    """Where a value first leaves what JSON can say, found without recursion."""
    stack: list[tuple[str, int, Any]] = [("$", 0, value)]
    while stack:
        path, level, part = stack.pop()
        if level > VALUE_DEPTH_MAX:
            return f"{path[:80]}… is nested deeper than {VALUE_DEPTH_MAX} levels"
        if part is None or isinstance(part, bool | int):
            continue
        if isinstance(part, str):
            if not part.isascii() and any("\ud800" <= character <= "\udfff" for character in part):
                return f"{path} holds a lone surrogate, which does not come back"
        elif isinstance(part, float):
            if not math.isfinite(part):
                return f"{path} is {part}, which JSON cannot say"
        elif isinstance(part, list):
            stack.extend((f"{path}[{index}]", level + 1, item) for index, item in reversed(list(enumerate(part))))
        elif isinstance(part, dict):
            for name in part:
                if not isinstance(name, str):
                    return f"{path} has the key {name!r} of type {type(name).__name__}, which does not come back"
            stack.extend((f"{path}.{name}", level + 1, item) for name, item in reversed(part.items()))
        else:
            return f"{path} is of type {type(part).__name__}, which does not come back as it was"
    return None
