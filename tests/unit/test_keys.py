"""`journal/_core/keys.py`: the forms of keys, their order, their prefixes, and what is no key."""

import enum
import itertools
import json
from typing import Any, Final

import pytest

from journal._core.keys import check_name, has_prefix, key_form, key_of, key_text, prefix_form
from journal.errors import Key
from journal.options import KEY_BYTES_MAX

# In the order of the contract: strings by code point, then tuples by their parts, integers by value before strings.
IN_ORDER: Final[list[Key]] = [
    "\x00",
    "\x00\x00",
    "\x01",
    '["a",1]',
    "a",
    "a\x00",
    "a\x00b",
    "aa",
    "b",
    "\x7f",
    "\xff",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
    (-(2**64),),
    (-65536,),
    (-65535,),
    (-257,),
    (-256,),
    (-255,),
    (-2,),
    (-1,),
    (-1, -1),
    (-1, ""),
    (0,),
    (0, 0),
    (0, 1, "a"),
    (0, "a"),
    (1,),
    (1, 0),
    (1, ""),
    (2,),
    (255,),
    (256,),
    (65535,),
    (65536,),
    (2**63,),
    (2**64,),
    (2**4096,),
    ("",),
    ("", -1),
    ("", 0),
    ("", ""),
    ("", "\x00"),
    ("", "a"),
    ("\x00",),
    ("\x00", "a"),
    ("\x00\x00",),
    ("\x00\x01",),
    ("\x01",),
    ("a",),
    ("a", -1),
    ("a", 1),
    ("a", 1, "b"),
    ("a", ""),
    ("a", "b"),
    ("a\x00",),
    ("a\x00", 1),
    ("a\x00b",),
    ("aa",),
    ("ab", "c"),
    ("\U0010ffff",),
]


class Word(str):
    """A string of a user's own class."""

    __slots__ = ()


class Colour(enum.StrEnum):
    """A member is a string."""

    RED = "red"


class Number(enum.IntEnum):
    """A member is an integer."""

    ONE = 1


@pytest.mark.parametrize("key", IN_ORDER, ids=repr)
def test_key_comes_back_as_it_was_given(key: Key) -> None:
    """A form can be turned back into its key, with the types of its parts."""
    back = key_of(key_form(key))

    assert back == key
    assert type(back) is type(key)
    assert [type(part) for part in back] == [type(part) for part in key]


def test_forms_have_the_order_of_the_contract() -> None:
    """Comparing forms byte by byte is comparing keys."""
    forms = [key_form(key) for key in IN_ORDER]

    assert forms == sorted(forms)
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize("string, pair", [('["a",1]', ("a", 1)), ("a", ("a",)), ("1", (1,)), ("\x02\x20a\x00", ("a",))])
def test_string_and_tuple_never_meet(string: str, pair: Key) -> None:
    """A string that looks like a tuple's text, or like its form, is another key."""
    assert key_form(string) != key_form(pair)


@pytest.mark.parametrize("one, other", [((1,), ("1",)), (("a", "b"), ("ab",)), (("a", ""), ("a",)), ((1, 2), (12,))])
def test_tuples_that_look_alike_never_meet(one: Key, other: Key) -> None:
    """Parts keep their types and their borders."""
    assert key_form(one) != key_form(other)


def test_text_is_not_normalised() -> None:
    """A composed and a decomposed letter are two keys."""
    assert key_form("\u00e9") != key_form("e\u0301")


@pytest.mark.parametrize(
    "given, plain", [(Word("w"), "w"), (Colour.RED, "red"), ((Colour.RED, Number.ONE), ("red", 1))]
)
def test_kinds_of_str_and_int_are_such(given: Any, plain: Key) -> None:
    """A member of a string or integer enumeration names the same effect as its value."""
    assert key_form(given) == key_form(plain)


@pytest.mark.parametrize("key", [None, 1, True, b"k", ["a"], {"a"}, 1.0, object()])
def test_other_type_is_no_key(key: object) -> None:
    """A key is a str or a tuple, and the message says what was given."""
    with pytest.raises(TypeError, match=f"a key is a str or a tuple of str and int, not {type(key).__name__}"):
        key_form(key)


@pytest.mark.parametrize("part", [True, False, None, b"a", 1.0, ("a",), ["a"]])
def test_other_type_is_no_part(part: object) -> None:
    """A part is a str or an int; a bool is refused, since True would meet 1."""
    with pytest.raises(TypeError, match=f"a part of a key is a str or an int, not {type(part).__name__}"):
        key_form(("a", part))


@pytest.mark.parametrize("key", ["", ()])
def test_empty_key_is_refused(key: Key) -> None:
    """It would name nothing."""
    with pytest.raises(ValueError, match="a key"):
        key_form(key)


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", ("a", "\udead"), ("\ud83d\ude00",)])
def test_lone_surrogate_is_refused(key: Key) -> None:
    """It has no UTF-8."""
    with pytest.raises(ValueError, match="a lone surrogate cannot be written as UTF-8"):
        key_form(key)


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f600"])
def test_string_is_limited_in_bytes(character: str) -> None:
    """The limit is of UTF-8 bytes, not of characters."""
    size = len(character.encode())
    longest = character * (KEY_BYTES_MAX // size)
    room = KEY_BYTES_MAX - len(longest.encode())

    assert key_of(key_form(longest + "a" * room)) == longest + "a" * room
    with pytest.raises(ValueError, match=f"a key has 1 to {KEY_BYTES_MAX} bytes of UTF-8, not {KEY_BYTES_MAX + 1}"):
        key_form(longest + "a" * (room + 1))


@pytest.mark.parametrize("filling", ["a", "€", '"', "\\", "\n", "\x00", "\x01", "\x1f", "\x7f"])
def test_tuple_is_limited_in_bytes_of_its_json(filling: str) -> None:
    """The limit of a tuple is that of its JSON array, escapes counted."""
    size = len(json.dumps(filling, ensure_ascii=False).encode()) - 2
    room = KEY_BYTES_MAX - len('["",1]')
    fits = filling * (room // size) + "a" * (room % size)
    assert len(key_text((fits, 1)).encode()) == KEY_BYTES_MAX

    assert key_of(key_form((fits, 1))) == (fits, 1)
    with pytest.raises(ValueError, match=f"not {KEY_BYTES_MAX + 1}"):
        key_form((fits + "a", 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_integer_is_limited_in_digits(sign: int) -> None:
    """The longest integer that fits is kept; one that no array could hold is refused before it is written out."""
    longest = sign * 10 ** (KEY_BYTES_MAX - 3 - (sign < 0)) - sign

    assert key_of(key_form((longest,))) == (longest,)
    with pytest.raises(ValueError, match="bytes"):
        key_form((sign * 10**KEY_BYTES_MAX,))
    with pytest.raises(ValueError, match="an integer of 3321929 bits is too long"):
        key_form((sign * 10**1_000_000,))


@pytest.mark.parametrize("parts", [682, 1_365, 2_047])
def test_many_parts_are_within_the_limit(parts: int) -> None:
    """As many parts as an array of the limit may have."""
    key = (1,) * parts

    assert key_of(key_form(key)) == key


def test_too_many_parts_are_refused() -> None:
    """Their array would be one byte too long."""
    with pytest.raises(ValueError, match=f"not {KEY_BYTES_MAX + 1}"):
        key_form((1,) * 2_048)


def test_message_shows_no_more_than_a_piece_of_the_key() -> None:
    """A key of a megabyte is not repeated in the error."""
    with pytest.raises(ValueError, match="…") as caught:
        key_form("k" * 1_000_000)

    assert len(str(caught.value)) < 200


# Prefixes


def starts_with(key: Key, prefix: Any) -> bool:
    """What a prefix means, said without forms: first characters of a string, first parts of a tuple."""
    if type(key) is not type(prefix):
        return False
    return key[: len(prefix)] == prefix


@pytest.mark.parametrize("prefix", ["", (), *IN_ORDER], ids=repr)
def test_prefix_matches_first_characters_or_first_parts(prefix: Any) -> None:
    """A string prefix matches within the text, a tuple prefix whole parts only, and neither the other kind."""
    start = prefix_form(prefix)

    matched = [key for key in IN_ORDER if has_prefix(key_form(key), start)]

    assert matched == [key for key in IN_ORDER if starts_with(key, prefix)]
    assert all(key_form(key).startswith(start) for key in matched)


@pytest.mark.parametrize("prefix", [None, 1, b"", [], (True,), ("a", None)])
def test_prefix_of_another_type_is_refused(prefix: object) -> None:
    """A prefix is a key or the beginning of one."""
    with pytest.raises(TypeError):
        prefix_form(prefix)


# What is no form


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"\x00",
        b"\x03a",
        b"a",
        b"\x01\xff",
        b"\x02\x20a",
        b"\x02\x20a\x00\xff",
        b"\x02\x20\xff\x00",
        b"\x02\x30",
        b"\x02\x10",
        b"\x02\x10\x80",
        b"\x02\x10\x80\x01",
        b"\x02\x10\x80\x02\x01",
        b"\x02\x10\x7f\xff",
        b"\x02\x10\x80\x00\x99",
        b"\x02\x00",
    ],
)
def test_other_bytes_are_no_form(form: bytes) -> None:
    """Bytes that no key has are refused, not read as some key."""
    with pytest.raises(ValueError):
        key_of(form)


def test_every_cut_of_a_form_is_refused_or_another_key() -> None:
    """A cut form never reads as the key that it was cut from."""
    for key in IN_ORDER:
        form = key_form(key)
        for end in range(len(form)):
            try:
                back = key_of(form[:end])
            except ValueError:
                continue
            assert back != key


# Texts


@pytest.mark.parametrize(
    "key, text",
    [("a b", "a b"), (("a", 1), '["a",1]'), (("é", -2), '["é",-2]'), (('"',), '["\\""]'), ('["a",1]', '["a",1]')],
)
def test_text_is_what_logs_and_shells_show(key: Key, text: str) -> None:
    """A string as it is, a tuple as its JSON array without spaces."""
    assert key_text(key) == text


# Names


def test_name_is_given_back_as_plain_text() -> None:
    """A member of an enumeration is written as its value, and no object of a user's class is kept."""
    for given in ("red", Word("red"), Colour.RED):
        name = check_name(given, "stream", 255)

        assert name == "red"
        assert type(name) is str


@pytest.mark.parametrize("name", [None, 1, b"s", ("s",)])
def test_name_of_another_type_is_refused(name: object) -> None:
    """A name is a str, and the message says which name and what was given."""
    with pytest.raises(TypeError, match=f"stream must be a str, not {type(name).__name__}"):
        check_name(name, "stream", 255)


def test_only_some_names_may_be_empty() -> None:
    """The actor may be empty, the others name something."""
    assert check_name("", "actor", 4_096, empty=True) == ""
    with pytest.raises(ValueError, match="stream must not be empty"):
        check_name("", "stream", 255)


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f600"])
def test_name_is_limited_in_bytes(character: str) -> None:
    """The limit is of UTF-8 bytes, not of characters."""
    longest = character * (252 // len(character.encode())) + "aaa"
    assert len(longest.encode()) == 255

    assert check_name(longest, "stream", 255) == longest
    with pytest.raises(ValueError, match="stream has 256 bytes of UTF-8, at most 255"):
        check_name(longest + "a", "stream", 255)


@pytest.mark.parametrize("name", ["\ud800", "stream-\udfff"])
def test_name_with_a_lone_surrogate_is_refused(name: str) -> None:
    """It has no UTF-8."""
    with pytest.raises(ValueError, match="lone surrogate"):
        check_name(name, "stream", 255)


def test_every_pair_of_keys_is_told_apart() -> None:
    """No form is the beginning of another's in a way that a longest key in an index could confuse."""
    for one, other in itertools.combinations(IN_ORDER, 2):
        assert key_form(one) != key_form(other)
