"""`journal/_storage/files.py`: what lies in a directory, before LMDB sees it."""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from journal._storage import files
from journal._storage.environment import create_data_file
from journal._storage.files import FileIdentity
from journal.errors import UnsupportedFilesystemError, UnsupportedFormatError
from tests.unit.golden import JOURNAL

PAGE: Final = 4_096


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data file of a journal in a directory of its own."""
    path = tmp_path / files.DATA_FILE
    path.write_bytes(JOURNAL.read_bytes())
    return path


def patched(path: Path, offset: int, content: bytes) -> None:
    """Overwrite some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def refusal(directory: Path) -> str:
    """What is said about a data file that is refused."""
    with pytest.raises(UnsupportedFormatError) as caught:
        files.check_data_file(str(directory))
    assert (caught.value.path, caught.value.supported) == (str(directory), files.SUPPORTED)
    return str(caught.value.found)


# Identity


def test_identity_is_of_the_file_and_not_of_its_name(tmp_path: Path) -> None:
    """Every spelling of a path names one file; another file under the same name is another."""
    path = tmp_path / "file"
    path.write_bytes(b"1")
    (tmp_path / "link").symlink_to(path)
    first = files.identity_of(str(path))
    assert files.identity_of(str(tmp_path / "link")) == first
    assert files.identity_of(f"{tmp_path}/../{tmp_path.name}/./file") == first

    (tmp_path / "other").write_bytes(b"1")
    (tmp_path / "other").rename(path)

    assert files.identity_of(str(path)) != first
    assert first == FileIdentity(path.stat().st_dev, first.inode)


def test_missing_file_has_no_identity(tmp_path: Path) -> None:
    """It was deleted under a running handle."""
    with pytest.raises(FileNotFoundError):
        files.identity_of(str(tmp_path / "file"))


# Directories


@pytest.mark.parametrize(
    "names",
    [
        (),
        (files.TURN_FILE,),
        (files.NEW_DATA_FILE,),
        (files.TURN_FILE, files.NEW_DATA_FILE, files.NEW_LOCK_FILE),
    ],
)
def test_directory_in_which_a_journal_may_be_made(tmp_path: Path, names: tuple[str, ...]) -> None:
    """An empty one, or what a creation that was cut short leaves."""
    for name in names:
        (tmp_path / name).touch()

    assert files.has_journal(str(tmp_path)) is False


def test_missing_directory_has_no_journal(tmp_path: Path) -> None:
    """It may be made, too."""
    assert files.has_journal(str(tmp_path / "missing")) is False


@pytest.mark.parametrize("names", [(), (files.OWNERS_FILE,), ("notes.txt",), (files.NEW_DATA_FILE,)])
def test_directory_with_a_data_file_has_a_journal(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Whatever lies beside it."""
    for name in (*names, files.DATA_FILE):
        (tmp_path / name).touch()

    assert files.has_journal(str(tmp_path)) is True


@pytest.mark.parametrize(
    "names, found",
    [
        ((files.OWNERS_FILE, files.TURN_FILE), "the lock files of a journal whose data.mdb is gone"),
        ((files.LMDB_LOCK_FILE,), "the lock files of a journal whose data.mdb is gone"),
        (("notes.txt", "a.txt"), "a directory of other files ('a.txt')"),
        ((files.TURN_FILE, "notes.txt"), "a directory of other files"),
    ],
)
def test_directory_of_something_else_is_refused(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    """A journal is never made over what was there, nor where one is gone."""
    for name in names:
        (tmp_path / name).touch()

    with pytest.raises(UnsupportedFormatError) as caught:
        files.has_journal(str(tmp_path))

    assert found in str(caught.value.found)


def test_path_of_a_file_is_refused(tmp_path: Path) -> None:
    """A journal is a directory."""
    (tmp_path / "file").touch()

    with pytest.raises(UnsupportedFormatError, match="a file, not a directory"):
        files.has_journal(str(tmp_path / "file"))


# Data files


def test_data_file_of_a_journal_is_taken(data: Path) -> None:
    """Without a word."""
    files.check_data_file(str(data.parent))


def test_new_data_file_is_taken(tmp_path: Path) -> None:
    """With the few pages that it has at first, and private to the user."""
    create_data_file(str(tmp_path), files.DATA_FILE, {b"\x01key": b"value"})

    files.check_data_file(str(tmp_path))
    assert stat.S_IMODE((tmp_path / files.DATA_FILE).stat().st_mode) == files.FILE_MODE == 0o600


def test_missing_or_private_data_file_is_the_systems_error(tmp_path: Path) -> None:
    """Whether it may be read is for the caller to say."""
    with pytest.raises(FileNotFoundError):
        files.check_data_file(str(tmp_path))


def test_empty_data_file_is_refused(data: Path) -> None:
    """LMDB would take it for a new environment."""
    data.write_bytes(b"")

    assert refusal(data.parent) == "an empty data file"


@pytest.mark.parametrize("size", [1, 16, 151, PAGE, PAGE + 100])
def test_data_file_without_its_meta_pages_is_refused(data: Path, size: int) -> None:
    """Cut within the first pages."""
    os.truncate(data, size)

    assert "a data file cut to " in refusal(data.parent)


@pytest.mark.parametrize("cut", [1, PAGE, 3 * PAGE, 8 * PAGE])
def test_truncated_data_file_is_refused(data: Path, cut: int) -> None:
    """Reading what is not there would be the end of the process."""
    os.truncate(data, data.stat().st_size - cut)

    assert refusal(data.parent).startswith("a truncated data file (")


def test_data_file_without_pages_that_are_free_is_taken(tmp_path: Path) -> None:
    """Pages at the end that nobody uses may be missing in a sound file: LMDB's own verifier tells."""
    with lmdb.open(str(tmp_path), map_size=2**20, sync=False, lib_version=0) as env:
        for value in (b"v" * 10 * PAGE, *(b"%d" % number for number in range(9))):
            with env.begin(write=True) as txn:
                txn.put(b"key", value)
    data = tmp_path / files.DATA_FILE
    os.truncate(data, data.stat().st_size - PAGE)

    files.check_data_file(str(tmp_path))

    os.truncate(data, data.stat().st_size - 5 * PAGE)
    assert refusal(tmp_path).startswith("a truncated data file (")


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    "offset, content, found",
    [
        (16, b"\x00\x00\x00\x00", "a data file that is not LMDB's"),
        (20, b"\x03\x00\x00\x00", "a data file of LMDB's format 3"),
        (40, b"\x00\x00\x00\x00", "a data file with pages of 0 bytes"),
        (40, b"\xff\x0f\x00\x00", "a data file with pages of 4095 bytes"),
        (40, b"\x00\x00\x02\x00", "a data file with pages of 131072 bytes"),
    ],
)
def test_damaged_meta_page_is_refused(data: Path, page: int, offset: int, content: bytes, found: str) -> None:
    """Either of the two: LMDB trusts the newer one."""
    patched(data, page * PAGE + offset, content)

    assert refusal(data.parent) == found


def test_meta_pages_that_do_not_follow_are_refused(data: Path) -> None:
    """Two commits are one apart: another pair is of two files."""
    transaction = struct.unpack_from("<Q", data.read_bytes(), 16 + 128)[0]
    patched(data, 16 + 128, struct.pack("<Q", transaction + 4))

    assert refusal(data.parent) == "a damaged data file (its two meta pages do not follow)"


@pytest.mark.parametrize("commits, is_taken", [(1, True), (19, True), (1_000, False)])
def test_meta_pages_are_looked_at_again_while_another_process_commits(
    data: Path, monkeypatch: pytest.MonkeyPatch, commits: int, *, is_taken: bool
) -> None:
    """What was seen then means nothing; a file that never stands still is refused in the end."""
    real = files._read_metas
    metas, size = real(str(data.parent), str(data))
    looks = itertools.count()

    def read_metas(directory: str, path: str) -> Any:
        look = next(looks)
        # Each check looks twice, and finds another transaction every time.
        return (
            real(directory, path)
            if look >= 2 * commits
            else ([metas[0], metas[1]._replace(transaction=10**6 + 2 * look)], size)
        )

    monkeypatch.setattr(files, "_read_metas", read_metas)
    monkeypatch.setattr("journal._storage.files.time.sleep", lambda _: None)

    if is_taken:
        files.check_data_file(str(data.parent))
    else:
        assert "do not follow" in refusal(data.parent)


@pytest.mark.parametrize("content", [b"SQLite format 3\x00" * 600, bytes(10_000), b"\xff" * 10_000])
def test_foreign_data_file_is_refused(data: Path, content: bytes) -> None:
    """Whatever it is."""
    data.write_bytes(content)

    assert refusal(data.parent) == "a data file that is not LMDB's"


def test_verifier_that_fails_is_a_problem(tmp_path: Path) -> None:
    """Whatever a damaged file makes of it, the file is damaged."""
    assert files._verify(str(tmp_path / "missing")) != []


# File systems

MOUNTS: Final = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /mnt/share rw shared:2 master:1 - nfs4 server:/x rw
31 22 0:26 / /mnt/share/local rw - xfs /dev/vdb rw
32 22 0:27 / /mnt/with\\040space rw - cifs //server/y rw
33 22 0:28 / /mnt/fuse rw - fuse.sshfs server: rw
34 22 0:29 / /mnt/over rw - ext4 /dev/vdc rw
35 22 0:30 / /mnt/over rw - nfs server:/z rw
36 22 0:31 / /mnt/home rw - fuse.encfs encfs rw
"""


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with these file systems, on which every path is real."""

    def open_mounts(path: str, *arguments: Any, **options: Any) -> Any:
        assert path == "/proc/self/mountinfo"
        return io.StringIO(MOUNTS)

    monkeypatch.setattr(files, "open", open_mounts, raising=False)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)


@pytest.mark.parametrize(
    "directory, kind",
    [
        ("/", "ext4"),
        ("/srv/journal", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/journal", "nfs4"),
        ("/mnt/shared/journal", "ext4"),
        ("/mnt/share/local/journal", "xfs"),
        ("/mnt/with space/journal", "cifs"),
        ("/mnt/fuse/journal", "fuse.sshfs"),
        ("/mnt/over/journal", "nfs"),
        ("/mnt/home/journal", "fuse.encfs"),
    ],
)
def test_file_system_is_that_of_the_deepest_mount(mounts: None, directory: str, kind: str) -> None:
    """The last one mounted where several lie over each other, and whole names only."""
    assert files.filesystem_of(directory) == kind


@pytest.mark.parametrize("directory", ["/mnt/share", "/mnt/with space/j", "/mnt/fuse/j", "/mnt/over/j"])
def test_network_file_system_is_refused(mounts: None, directory: str) -> None:
    """Locks do not hold there; the error names the kind."""
    with pytest.raises(UnsupportedFilesystemError) as caught:
        files.check_filesystem(directory)

    assert caught.value.filesystem == files.filesystem_of(directory)


@pytest.mark.parametrize("directory", ["/srv", "/mnt/share/local/j", "/mnt/home/j"])
def test_local_file_system_is_taken(mounts: None, directory: str) -> None:
    """Also one that a program of this machine serves."""
    files.check_filesystem(directory)


def test_file_system_that_the_kernel_does_not_tell_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sandbox without /proc is no network."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(files, "open", refuse, raising=False)

    assert files.filesystem_of(str(tmp_path)) == ""
    files.check_filesystem(str(tmp_path))


def test_file_system_of_this_machine_is_known(tmp_path: Path) -> None:
    """Through a symbolic link, too."""
    (tmp_path / "link").symlink_to(tmp_path)

    assert files.filesystem_of(str(tmp_path / "link")) == files.filesystem_of(str(tmp_path)) != ""


# Our own files


def test_lock_file_is_made_private_and_is_not_inherited(tmp_path: Path) -> None:
    """An existing one is opened as it is; a child that is started does not get it."""
    descriptor = files.open_lock_file(str(tmp_path), files.TURN_FILE)
    again = files.open_lock_file(str(tmp_path), files.TURN_FILE)
    try:
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == files.FILE_MODE
        assert os.fstat(again).st_ino == os.fstat(descriptor).st_ino
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
        os.close(again)


def test_names_of_a_directory_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory itself is flushed, and its descriptor closed whatever comes of that."""
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    files.sync_directory(str(tmp_path))
    assert len(flushed) == 1

    def fail(descriptor: int) -> None:
        flushed.append(descriptor)
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        files.sync_directory(str(tmp_path))
    for descriptor in flushed:
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_files_of_a_creation_that_was_cut_short_are_removed(tmp_path: Path) -> None:
    """Those that are there, and no other."""
    for name in (files.NEW_DATA_FILE, files.TURN_FILE):
        (tmp_path / name).touch()

    files.remove_new_files(str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == [files.TURN_FILE]
    files.remove_new_files(str(tmp_path))


def test_free_bytes_are_those_of_the_user(tmp_path: Path) -> None:
    """What the file system keeps for root is not counted."""
    status = os.statvfs(tmp_path)

    assert 0 <= files.free_bytes(str(tmp_path)) <= status.f_bfree * status.f_frsize


def test_checks_change_nothing(data: Path) -> None:
    """A file that is looked at, taken or refused, is left as it was."""
    before = data.read_bytes()
    checks: list[Callable[[str], Any]] = [files.has_journal, files.check_data_file, files.check_filesystem]
    for check in checks:
        check(str(data.parent))

    assert data.read_bytes() == before
    assert [path.name for path in data.parent.iterdir()] == [files.DATA_FILE]
