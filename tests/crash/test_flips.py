"""A byte flipped in the data file: found, refused, or without effect; never another answer, a second run or a crash."""

import os

import pytest

from tests.crash.flips import MASKS, PAGE_BYTES, faults, small_journal

STEP = 97
"""Every so manieth byte of the pages' bodies; the phase moves with the process, so that many runs come to all."""

HEADER_BYTES = 160
"""Of each page: its header, the whole of a meta page, and where rows begin."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_flipped_bytes_are_found_refused_or_without_effect() -> None:
    """The heads of all pages, one byte in so many of the rest, and some of the reserve after them."""
    data, used, sound = small_journal()
    heads = {offset for offset in range(used) if offset % PAGE_BYTES < HEADER_BYTES and offset % 4 == os.getpid() % 4}
    metas = {PAGE_BYTES * page + offset for page in (0, 1) for offset in range(HEADER_BYTES)}
    bodies = set(range(os.getpid() % STEP, used + PAGE_BYTES, STEP))

    found = faults([(offset, mask) for offset in sorted(heads | metas | bodies) for mask in MASKS], data, used, sound)

    assert found == []
