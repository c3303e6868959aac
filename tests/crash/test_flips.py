"""A byte flipped in the data file: found, refused, or without effect; never another answer, a second run or a crash."""

import os

import pytest

from tests.crash.flips import MASKS, PAGE_BYTES, faults, made_journal

STEP = 97
"""Every so manieth byte of the pages' bodies; the phase moves with the process, so that many runs come to all."""

LARGER = 30
"""How many times as much there is in the larger journal."""

SAMPLE_STEP = 997
"""Every so manieth byte of that."""

HEADER_BYTES = 160
"""Of each page: its header, the whole of a meta page, and where rows begin."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_flipped_bytes_are_found_refused_or_without_effect() -> None:
    """The heads of all pages, one byte in so many of the rest, and some of the reserve after them."""
    data, used, sound = made_journal()
    heads = {offset for offset in range(used) if offset % PAGE_BYTES < HEADER_BYTES and offset % 4 == os.getpid() % 4}
    metas = {PAGE_BYTES * page + offset for page in (0, 1) for offset in range(HEADER_BYTES)}
    bodies = set(range(os.getpid() % STEP, used + PAGE_BYTES, STEP))

    found = faults([(offset, mask) for offset in sorted(heads | metas | bodies) for mask in MASKS], data, used, sound)

    assert found == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_flipped_bytes_of_a_larger_journal_are_found_refused_or_without_effect() -> None:
    """A sample, over a tree with more branches and hundreds of records in each table."""
    data, used, sound = made_journal(LARGER)

    places = [(offset, MASKS[offset % 2]) for offset in range(os.getpid() % SAMPLE_STEP, used, SAMPLE_STEP)]

    assert len(places) > 100
    assert faults(places, data, used, sound) == []
