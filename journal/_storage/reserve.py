"""Room on the disk for the outcomes of what is in flight: the data file is kept allocated past its last page.

LMDB extends its file as it writes. Where the disk takes no more, new intents must be refused while there is still room
for the outcomes of those before, so that room is the file's own already. The file is longer than LMDB knows then, which
LMDB does not mind. A file system that copies on write (btrfs, ZFS) may still refuse what it has allocated: there the
outcome is `outcome-unrecorded`, as on a disk that fails.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from journal._storage.files import NO_ROOM
from journal.options import DISK_RESERVE_BYTES, DISK_RETRY_BYTES, DISK_STEP_BYTES

_CANNOT: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What a file system without allocation says, where the C library does not make up for it (musl)."""

_BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`."""

_ZEROS: Final = bytes(65_536)


class Reserve:
    """The allocation of one open data file; the writer's turn must be held.

    What was found allocated is remembered: other processes only add to it, and the file becomes no shorter while it is
    open.
    """

    def __init__(self, descriptor: int, *, max_size: int | None) -> None:
        self._descriptor = descriptor
        self._max_size = max_size
        self._allocated = 0
        self._is_whole = False
        self._is_short = False

    def keep(self, end: int) -> None:
        """Let the file be allocated up to an offset, and for the reserve after it; nothing where it is known to be.

        Raises:
            OSError: it cannot be; with a code of `NO_ROOM` where there is no room.
        """
        wanted = end + DISK_RESERVE_BYTES
        if self._is_short:
            # Who was refused once is not to be followed by one that needs a page less: room has to be made first.
            wanted += DISK_RETRY_BYTES
        if self._max_size is not None:
            wanted = min(wanted, self._max_size)  # LMDB writes nothing past its map
        if wanted <= self._allocated:
            self._is_short = False
            return
        status = os.fstat(self._descriptor)
        size = status.st_size
        # Looked at once: a copy of the file may have holes where the reserve was.
        has_holes = not self._is_whole and status.st_blocks * _BLOCK_BYTES < size
        if has_holes or size < wanted:
            try:
                size = self._extend(0 if has_holes else size, size, wanted)
            except OSError:
                self._is_short = True
                raise
        self._is_whole = True
        self._is_short = False
        self._allocated = size

    def _extend(self, start: int, size: int, wanted: int) -> int:
        """Allocate from an offset to beyond what is wanted, or only to there; the file's size then."""
        for end in (max(size, wanted + DISK_STEP_BYTES), max(size, wanted)):
            try:
                _allocate(self._descriptor, start, size, end)
            except OSError as error:
                if error.errno not in NO_ROOM or end <= max(size, wanted):
                    raise
            else:
                break
        return end


def _allocate(descriptor: int, start: int, size: int, end: int) -> None:
    try:
        if start < end:
            os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        for offset in range(size, end, len(_ZEROS)):
            piece = _ZEROS[: end - offset]
            if os.pwrite(descriptor, piece, offset) < len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
