"""The journal's directory: what lies in it, whether it may be opened, and how a new one is made.

LMDB takes an empty or missing data file for a new environment and a truncated one for whole (reading it is a SIGBUS).
So the directory and the data file's two meta pages are looked at before LMDB sees them, with plain reads. `lock.mdb`
is never opened here: closing it would drop LMDB's own locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from typing import Any, Final, NamedTuple

import lmdb.verify

from journal.errors import UnsupportedFilesystemError, UnsupportedFormatError
from journal.options import POLL_SECONDS_MIN
from journal.records import FORMAT_VERSION

DATA_FILE: Final = "data.mdb"
LMDB_LOCK_FILE: Final = "lock.mdb"
TURN_FILE: Final = "turn.lock"
OWNERS_FILE: Final = "owners.lock"
NEW_DATA_FILE: Final = "data.mdb.new"
NEW_LOCK_FILE: Final = "data.mdb.new-lock"

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

SUPPORTED: Final = FORMAT_VERSION

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ROOM_BYTES: Final = 4 * 1024 * 1024
"""With less than this free, a failed write is taken for a full disk: LMDB reports a short write as EIO."""

_MAY_PRECEDE_DATA: Final = frozenset({TURN_FILE, NEW_DATA_FILE, NEW_LOCK_FILE})
"""What a creation that was cut short leaves; with anything else, a data file was here and is gone."""

_LMDB_MAGIC: Final = 0xBEEFC0DE
_LMDB_VERSION: Final = 1
_META: Final = struct.Struct("<II16xI92xQQ")
"""LMDB 0.9's `MDB_meta`: magic, version, page size (the first database's pad), last page, transaction."""
_META_TRIES: Final = 20
_PAGE_HEADER_BYTES: Final = 16
_PAGE_BYTES_MAX: Final = 65_536

_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "9p", "beegfs"}
)
_NETWORK_PREFIXES: Final = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse")


class _Meta(NamedTuple):
    """What one meta page says."""

    page_bytes: int
    last_page: int
    transaction: int


class FileIdentity(NamedTuple):
    """Which file a path names: its device and inode."""

    device: int
    inode: int


def identity_of(path: str) -> FileIdentity:
    """The identity of the file at a path.

    Raises:
        FileNotFoundError: there is none.
    """
    status = os.stat(path)
    return FileIdentity(status.st_dev, status.st_ino)


def has_journal(directory: str) -> bool:
    """Whether a journal's data file lies in a directory; False for one that is missing, empty or just being made.

    Raises:
        UnsupportedFormatError: something else lies there, or the data file of a journal is gone.
    """
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise UnsupportedFormatError(directory, "a file, not a directory", SUPPORTED) from None
    if DATA_FILE in names:
        return True
    if names <= _MAY_PRECEDE_DATA:
        return False
    if OWNERS_FILE in names or LMDB_LOCK_FILE in names:
        raise UnsupportedFormatError(directory, f"the lock files of a journal whose {DATA_FILE} is gone", SUPPORTED)
    raise UnsupportedFormatError(directory, f"a directory of other files ({min(names)!r})", SUPPORTED)


def check_data_file(directory: str) -> None:
    """Look at the data file's meta pages, without LMDB.

    Raises:
        UnsupportedFormatError: it is empty, foreign, truncated or damaged.
        PermissionError: it may not be read.
    """
    path = os.path.join(directory, DATA_FILE)
    problem = ""
    for _ in range(_META_TRIES):
        metas, size = _read_metas(directory, path)
        problem = _problem_of(path, metas, size)
        if not problem:
            return
        if _read_metas(directory, path)[0] == metas:
            raise UnsupportedFormatError(directory, problem, SUPPORTED)
        time.sleep(POLL_SECONDS_MIN)  # another process committed meanwhile: what was seen means nothing
    raise UnsupportedFormatError(directory, problem, SUPPORTED)


def _problem_of(path: str, metas: list[_Meta], size: int) -> str:
    """What is wrong with a data file by its meta pages; empty where nothing is."""
    if abs(metas[0].transaction - metas[1].transaction) != 1:
        return "a damaged data file (its two meta pages do not follow)"
    if size < (max(meta.last_page for meta in metas) + 1) * metas[0].page_bytes:
        # Pages freed at the end may never have been written; LMDB's own verifier tells, in plain Python.
        problems = _verify(path)
        if problems:
            return f"a truncated data file ({problems[0]})"
    return ""


def _read_metas(directory: str, path: str) -> tuple[list[_Meta], int]:
    """Both meta pages, and the size of the file after they were read: it only grows."""
    with open(path, "rb", buffering=0) as file:
        pages = file.read(2 * _PAGE_BYTES_MAX)
        if not pages:
            raise UnsupportedFormatError(directory, "an empty data file", SUPPORTED)
        first = _read_meta(directory, pages)
        metas = [first, _read_meta(directory, pages[first.page_bytes :])]
        return metas, os.fstat(file.fileno()).st_size


def state_of(directory: str) -> object:
    """What differs after each commit to the data file in a directory."""
    return _read_metas(directory, os.path.join(directory, DATA_FILE))[0]


def check_filesystem(directory: str) -> None:
    """Refuse a network file system, where neither LMDB's locks nor ours hold.

    Raises:
        UnsupportedFilesystemError: the directory lies on one.
    """
    kind = filesystem_of(directory)
    if kind in _NETWORK_FILESYSTEMS or kind.startswith(_NETWORK_PREFIXES):
        raise UnsupportedFilesystemError(directory, kind)


def filesystem_of(directory: str) -> str:
    """The type of the file system that a directory lies on, as the kernel names it; empty where it does not say."""
    real = os.path.realpath(directory)
    best, kind = -1, ""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            mount = fields.split(" ")[4].replace("\\040", " ")
            inside = real == mount or real.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= best:
                best, kind = len(mount), rest.split(" ")[0]
    return kind


def open_lock_file(directory: str, name: str) -> int:
    """A descriptor of one of our own lock files, made where it is missing."""
    return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_new_files(directory: str) -> None:
    """Remove what a creation that was cut short left."""
    for name in (NEW_DATA_FILE, NEW_LOCK_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def clean_up(directory: str) -> None:
    """Finish for who died while it made or replaced the data file.

    Its rename may not be durable yet, and what is committed from now on must not be lost with it: so the directory is
    flushed first, and what says that this may be needed goes last.
    """
    if any(os.path.lexists(os.path.join(directory, name)) for name in (NEW_DATA_FILE, NEW_LOCK_FILE)):
        sync_directory(directory)
        remove_new_files(directory)


def make_file(path: str) -> int:
    """A descriptor of a new, empty file that is private to the user."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)


def sync_file(path: str) -> None:
    """Make what was written into a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(directory: str) -> int:
    """Bytes that this user may still write on the directory's file system."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _read_meta(directory: str, page: bytes) -> _Meta:
    try:
        magic, version, page_bytes, last_page, transaction = _META.unpack_from(page, _PAGE_HEADER_BYTES)
    except struct.error:
        raise UnsupportedFormatError(directory, f"a data file cut to {len(page)} bytes", SUPPORTED) from None
    if magic != _LMDB_MAGIC:
        raise UnsupportedFormatError(directory, "a data file that is not LMDB's", SUPPORTED)
    if version != _LMDB_VERSION:
        raise UnsupportedFormatError(directory, f"a data file of LMDB's format {version}", SUPPORTED)
    if not 512 <= page_bytes <= _PAGE_BYTES_MAX or page_bytes & (page_bytes - 1):
        raise UnsupportedFormatError(directory, f"a data file with pages of {page_bytes} bytes", SUPPORTED)
    return _Meta(page_bytes, last_page, transaction)


def _verify(path: str) -> list[str]:
    try:
        verify: Any = lmdb.verify.verify  # it has no annotations
        return list(verify(path, subdir=False))
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of the verifier, it is damaged
        return [f"{type(error).__name__}: {error}"]
