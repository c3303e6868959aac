"""Keys, whatever they are: their order, their identity, and that they come back as they were."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from journal import Intent, Journal

from .model import Key, order, starts_with
from .scripts import open_quietly

# Beginnings that make keys meet in their first 511 bytes, and that end just before, at and after them.
BEGINNINGS = ["", "a", *("x" * length for length in range(488, 516)), "x" * 1000, "é" * 300, "\x00" * 100]
texts = st.one_of(
    st.text(max_size=6),
    st.builds(
        lambda beginning, end: beginning + end, st.sampled_from(BEGINNINGS), st.text("\x00ax\uffff😀é", max_size=3)
    ),
)
numbers = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**200), 2**200))
parts: st.SearchStrategy[str | int] = st.one_of(texts.filter(bool), numbers)
# However the bytes of a tuple are counted, these have fewer than 4,096.
keys: st.SearchStrategy[Key] = st.one_of(
    texts.filter(bool),
    st.lists(parts, min_size=1, max_size=3).map(tuple).filter(lambda key: len(json.dumps(key)) < 4_000),
    st.tuples(st.sampled_from(["a", "x" * 511]), numbers),
)
several = st.lists(keys, min_size=1, max_size=12, unique_by=lambda key: (type(key), key))


@contextmanager
def journal_with(found: list[Key]) -> Iterator[Journal]:
    """Gives a journal that has an unfinished effect for each key, made in one walk."""
    with tempfile.TemporaryDirectory() as directory, open_quietly(Path(directory) / "journal") as j:
        j.append("s", None, op_id="1")
        intents = [Intent(key, _never, _never) for key in found]
        settled = j.recover(0, intents=lambda _: intents, on_unresolved="pass")
        assert settled.passed == len(found)
        yield j


def _never(*_: object) -> Any:
    raise AssertionError("this must not be called")


def listed(records: Any) -> list[Key]:
    """Gives the keys of records."""
    return [record.key for record in records]


def assert_same_keys(actual: list[Key], expected: list[Key]) -> None:
    """Asserts that keys are equal and of equal types."""
    assert actual == expected
    assert list(map(type, actual)) == list(map(type, expected))


@given(several)
@settings(max_examples=150)
def test_effects_are_in_the_contracts_order(found: list[Key]) -> None:
    """str keys by code point, then tuples by their parts, ints by value before strs, however long the keys are."""
    with journal_with(found) as j:
        assert_same_keys(listed(j.effects()), sorted(found, key=order))
        assert_same_keys(listed(j.unfinished()), sorted(found, key=order))


@given(several)
@settings(max_examples=100)
def test_each_key_has_its_own_record_and_gives_itself_back(found: list[Key]) -> None:
    """No two keys meet, and each comes back equal, part by part, from every place that gives keys."""
    with journal_with(found) as j:
        for key in found:
            record = j.record(key)
            assert record is not None
            (event,) = j.history(key)
            for same in (record.key, event.key):
                assert same == key
                assert type(same) is type(key)
                assert isinstance(same, str) or list(map(type, same)) == list(map(type, key))


@given(several, st.integers(1, 5), keys)
@settings(max_examples=100)
def test_pages_are_parts_of_the_whole(found: list[Key], size: int, place: Key) -> None:
    """Paging by key gives everything once, and a page may begin after any key, known or not."""
    with journal_with(found) as j:
        pages: list[Key] = []
        after: Key | None = None
        while page := listed(j.effects(after=after, limit=size)):
            pages += page
            after = page[-1]

        assert_same_keys(pages, sorted(found, key=order))
        rest = [key for key in sorted(found, key=order) if order(key) > order(place)]
        assert_same_keys(listed(j.effects(after=place)), rest)
        assert_same_keys(listed(j.effects(after=place, limit=size)), rest[:size])


@given(several, st.data())
@settings(max_examples=100)
def test_prefix_matches_whole_beginnings(found: list[Key], data: st.DataObject) -> None:
    """A str prefix matches the beginning of strs, a tuple prefix whole first parts, in order, over every length."""
    key = data.draw(st.sampled_from(found))
    length = data.draw(st.integers(1, len(key)))
    prefix: Key = key[:length]
    with journal_with(found) as j:
        expected = [key for key in sorted(found, key=order) if starts_with(key, prefix)]

        assert_same_keys(listed(j.effects(prefix=prefix)), expected)
        assert_same_keys(listed(j.unfinished(prefix=prefix)), expected)
        assert_same_keys(listed(j.effects(prefix=prefix, after=key)), expected[expected.index(key) + 1 :])


@given(several)
@settings(max_examples=50)
def test_cleared_key_leaves_the_others_where_they_were(found: list[Key]) -> None:
    """Clearing one of them changes neither the order nor the records of the rest."""
    gone, rest = found[0], found[1:]
    with journal_with(found) as j:
        j.clear_effect(gone, reason="gone")

        assert j.record(gone) is None
        assert_same_keys(listed(j.effects()), sorted(rest, key=order))
        assert_same_keys(listed(j.unfinished()), sorted(rest, key=order))
        assert [event.phase for event in j.history(gone)] == ["failed", "cleared"]


@given(several)
@settings(max_examples=50)
def test_steps_of_different_keys_are_different(found: list[Key]) -> None:
    """A step answers for its own key only."""
    with journal_with([]) as j:
        for index, key in enumerate(found):
            assert j.step(key, lambda index=index: index) == index  # type: ignore[misc]  # mypy cannot infer a lambda with a default

        for index, key in enumerate(found):
            assert j.step(key, _never) == index
