"""How stored operations are read as today's type: by msgspec, and before it by `upcast`, old tag by old tag.

A stored operation never changes. One whose tag the declared type does not know any more is made into a newer shape by
the function that `upcast` has for the tag, as often as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from journal._core import hooks
from journal._core.payloads import NotOfTypeError, check_type, decode_value, encode_canonical
from journal._core.requests import StoredOperation
from journal._core.texts import error_text
from journal.errors import CorruptRecordError, InvalidOperationError

Tag = str | int
Upcast = Callable[[Any], Any]

_TAG_FIELD: Final = "type"
"""Where a tag stands in a type that names no field for it: msgspec's own default."""


class Schema:
    """The type of a journal's operations, and what becomes of older ones.

    Raises:
        TypeError: nothing can be decoded into the type, or `upcast` is no mapping of tags to functions.
    """

    def __init__(self, kind: Any = None, upcast: Any = None) -> None:
        check_type(kind, "operation")
        self.kind = kind
        self.upcasts: dict[Tag, Upcast] = _checked_upcasts(upcast)
        structs = [] if kind is None else list(_tagged(inspect.type_info(kind)))
        self._tags = frozenset(info.tag for info in structs)
        self._is_array_like = any(info.array_like for info in structs)
        self._field = next((info.tag_field for info in structs), None) or _TAG_FIELD
        self._decode_tag = _tag_decoder(self._field, is_array_like=self._is_array_like)

    def decode(self, payload: bytes) -> Any:
        """An operation as today's type.

        Raises:
            msgspec.DecodeError: it is no JSON.
            NotOfTypeError: it cannot be read so; the text says why, and names the tag where that is the reason.
        """
        if self.upcasts:
            tag = self._tag_of(payload)
            if tag in self.upcasts:
                return self._upcast(payload, tag)
        try:
            return decode_value(payload, self.kind)
        except NotOfTypeError as error:
            tag = self._tag_of(payload)
            if tag is None or tag in self._tags:
                raise
            text = f"{error}; its tag {tag!r} is none of that type's, and upcast= has no function for it"
            raise NotOfTypeError(text) from error

    def operation_of(self, stored: StoredOperation) -> Any:
        """A stored operation as today's type.

        Raises:
            InvalidOperationError: today's type does not decode it.
            CorruptRecordError: its payload is no JSON.
        """
        head = stored.head
        try:
            return self.decode(stored.payload)
        except NotOfTypeError as error:
            reason = error.__cause__ or error
            raise InvalidOperationError(head.stream, head.op_id, str(error), stored.position) from reason
        except msgspec.DecodeError as error:
            raise CorruptRecordError(stored.position, f"its payload: {error}", stream=head.stream) from error

    def is_same(self, stored: StoredOperation, payload: bytes) -> bool:
        """Whether a stored operation, as today's type, is written as this payload: fields may have come since."""
        try:
            return encode_canonical(self.decode(stored.payload)) == payload
        except Exception:  # noqa: BLE001 - what cannot be read today is not what was sent
            return False

    def _upcast(self, payload: bytes, tag: Tag | None) -> Any:
        value = decode_value(payload)
        passed: list[Tag] = []
        while tag is not None and tag in self.upcasts:
            if tag in passed:
                raise NotOfTypeError(f"upcast= leads from tag {tag!r} back to it")
            passed.append(tag)
            try:
                value = hooks.call(self.upcasts[tag], value)
            except Exception as error:
                raise NotOfTypeError(f"upcast= of its tag {tag!r} raised {error_text(error)}") from error
            tag = self._tag_in(value)
        try:
            return decode_value(msgspec.json.encode(value), self.kind)
        except Exception as error:
            text = f"what upcast= made of its tag {passed[0]!r} cannot be read: {error_text(error)}"
            raise NotOfTypeError(text) from error

    def _tag_of(self, payload: bytes) -> Tag | None:
        try:
            return _tag_or_none(self._decode_tag(payload).tag)
        except msgspec.ValidationError:
            return None

    def _tag_in(self, value: Any) -> Tag | None:
        if self._is_array_like:
            return _tag_or_none(value[0]) if isinstance(value, list) and value else None
        return _tag_or_none(value.get(self._field)) if isinstance(value, dict) else None


def _tag_or_none(tag: Any) -> Tag | None:
    return tag if type(tag) in (str, int) else None


def _tagged(info: inspect.Type) -> Iterator[inspect.StructType]:
    """The tagged structs that a type may be."""
    if isinstance(info, inspect.UnionType):
        for one in info.types:
            yield from _tagged(one)
    elif isinstance(info, inspect.Metadata):
        yield from _tagged(info.type)
    elif isinstance(info, inspect.StructType) and info.tag_field is not None:
        yield info


def _tag_decoder(field: str, *, is_array_like: bool) -> Callable[[bytes], Any]:
    """Decodes the tag alone, and skips all else."""
    tag = ("tag", Any, msgspec.field(name=field, default=None))
    return msgspec.json.Decoder(msgspec.defstruct("Tagged", [tag], array_like=is_array_like)).decode


def _checked_upcasts(upcast: Any) -> dict[Tag, Upcast]:
    if upcast is None:
        return {}
    if not isinstance(upcast, Mapping):
        raise TypeError(f"upcast must map old tags to functions, not be {type(upcast).__name__}: {upcast!r}")
    for tag, function in upcast.items():
        if _tag_or_none(tag) is None:
            raise TypeError(f"upcast: a tag must be a str or an int, not {type(tag).__name__}: {tag!r}")
        if not callable(function):
            raise TypeError(f"upcast: of tag {tag!r} must be a function of an old operation, not {function!r}")
    return dict(upcast)
