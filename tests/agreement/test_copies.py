"""Backups, restored journals, and what they know: nothing that was done after the copy is done again."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    Accepted,
    Cursor,
    EffectConflictError,
    EffectUnresolvedError,
    Intent,
    Journal,
    JournalClosedError,
    JournalReadonlyError,
    NotPerformed,
    Restored,
    Uncertain,
)

from .support import (
    START,
    Boom,
    Clock,
    FileRecipient,
    Gate,
    Peer,
    Stub,
    accept,
    leave_failed,
    phases,
    unused,
)
from .test_logs import Logger

Open = Callable[..., Journal]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a copy is to be."""
    return tmp_path / "copy"


Copier = Callable[[Journal, Path], Cursor]


def by_backup(j: Journal, place: Path) -> Cursor:
    return j.backup(place)


def by_restore(j: Journal, place: Path) -> Cursor:
    """Gives what a journal is that was made of a backup."""
    backup = place.with_name("backup")
    j.backup(backup)
    head = journal.restore(backup, place)
    shutil.rmtree(backup)
    return head


@pytest.fixture(params=[by_backup, by_restore])
def copy(request: pytest.FixtureRequest) -> Copier:
    """Both that make a journal which is a copy."""
    copier: Copier = request.param
    return copier


def append(j: Journal, op_id: str) -> None:
    j.append("s", op_id, op_id=op_id)


# A backup


def test_backup_gives_the_head_that_it_holds(j: Journal, open_journal: Open, place: Path) -> None:
    """All that was there is in it, and nothing that came later."""
    append(j, "a")
    accept(j, "k")
    j.save_cursor("c", 1)

    head = j.backup(str(place))
    append(j, "b")

    assert isinstance(head, Cursor)
    assert head == 3
    twin = open_journal(place, readonly=True)
    assert [c.operation for c in twin.read()] == ["a"]
    assert (twin.head(), twin.cursor("c"), twin.journal_id) == (3, 1, j.journal_id)
    assert list(twin.verify()) == []


def test_backup_says_what_it_is(j: Journal, open_journal: Open, place: Path, clock: Clock) -> None:
    """To who reads it as to who writes; the journal that it was made of says nothing."""
    append(j, "a")
    j.backup(place)

    said = open_journal(place, readonly=True).restored()

    assert said is not None
    assert (said.head, said.at, said.confirmed_at) == (1, START, None)
    assert len(said.incarnation) == 32
    assert j.restored() is None


def test_backup_does_not_wait_for_a_writer(j: Journal, place: Path) -> None:
    """Nor for an effect that is running."""
    gate = Gate()
    running = threading.Thread(target=lambda: journal_effect(j, gate))
    running.start()
    gate.wait_until_entered()

    assert j.backup(place) == 1

    gate.open()
    running.join()
    assert phases(j, "k") == ["intent", "accepted"]


def journal_effect(j: Journal, run: Any) -> None:
    j.effect("k", run=run, reconcile=unused())


def test_backups_while_other_processes_write_are_whole(
    j: Journal, open_journal: Open, start_peer: Callable[..., Peer], tmp_path: Path
) -> None:
    """Each is one state of the journal, through the position that it says."""
    peers = [start_peer("flood") for _ in range(4)]
    for peer in peers:
        peer.hear("opened")
    heads = []
    for number in range(5):
        heads.append(j.backup(tmp_path / f"{number}"))
        j.wait(heads[-1])
    for peer in peers:
        peer.kill()

    assert heads == sorted(heads)
    for number, head in enumerate(heads):
        twin = open_journal(tmp_path / f"{number}", readonly=True)
        assert twin.head() == head
        assert list(twin.verify()) == []


@pytest.mark.parametrize("name", ["", "inside"])
def test_backup_into_the_journal_itself_is_refused(j: Journal, path: Path, name: str) -> None:
    """And nothing is made there."""
    before = sorted(path.iterdir())

    with pytest.raises(ValueError, match="outside"):
        j.backup(path / name)
    assert sorted(path.iterdir()) == before


def test_backup_over_something_is_refused(j: Journal, place: Path) -> None:
    """A second one needs a place of its own."""
    j.backup(place)

    with pytest.raises(FileExistsError):
        j.backup(place)
    with pytest.raises(FileNotFoundError):
        j.backup(place.with_name("nowhere") / "copy")


def test_closed_journal_makes_no_backup(j: Journal, place: Path) -> None:
    """It says so."""
    j.close()

    for call in (lambda: j.backup(place), j.restored, j.confirm_restored, j.vacuum, j.rebuild):
        with pytest.raises(JournalClosedError):
            call()
    assert not place.exists()


# Restored


def test_restored_journal_is_another_incarnation(j: Journal, open_journal: Open, tmp_path: Path) -> None:
    """Of the same journal: what it says is about itself, and the backup can be restored again."""
    append(j, "a")
    j.backup(tmp_path / "backup")

    heads = [journal.restore(tmp_path / "backup", tmp_path / name, clock=lambda: 7) for name in ("one", "two")]

    said = [open_journal(tmp_path / name).restored() for name in ("backup", "one", "two")]
    assert heads == [1, 1]
    assert all(isinstance(head, Cursor) for head in heads)
    assert len({one.incarnation for one in said if one is not None}) == 3
    assert [one.at for one in said if one is not None] == [START, 7, 7]


def test_restore_of_nothing_says_so(tmp_path: Path) -> None:
    """As of what is no journal, and to where something is."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").write_bytes(b"no journal")

    with pytest.raises(FileNotFoundError):
        journal.restore(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(journal.UnsupportedFormatError):
        journal.restore(tmp_path / "other", tmp_path / "new")
    with pytest.raises(TypeError):
        journal.restore(tmp_path / "other", tmp_path / "new", clock=5)  # type: ignore[arg-type]  # what is refused
    assert [found.name for found in tmp_path.iterdir()] == ["other"]


def test_copy_is_told_of_when_it_is_opened_for_writing(
    j: Journal, open_journal: Open, place: Path, copy: Copier
) -> None:
    """Once for each handle, until it is confirmed."""
    append(j, "a")
    copy(j, place)
    read, written, confirmed = Logger(), Logger(), Logger()

    open_journal(place, readonly=True, logger=read).close()
    twin = open_journal(place, logger=written)
    twin.confirm_restored()
    twin.close()
    open_journal(place, logger=confirmed).close()

    said = [(line.level, line.event, line.values.get("head")) for line in written.lines]
    assert said == [("warning", "journal_restored", 1), ("info", "journal_confirmed", 1)]
    assert read.lines == confirmed.lines == []


# Effects in a copy


def test_what_was_done_after_the_copy_is_not_done_again(
    j: Journal, open_journal: Open, place: Path, copy: Copier, recipient: FileRecipient
) -> None:
    """The same calls once more, in the copy: each recipient is asked, and has it already."""
    keys = [("mail", number) for number in range(6)]

    def send(on: Journal, key: tuple[str, int]) -> Any:
        return on.effect(key, run=lambda: recipient.deliver(key), reconcile=lambda _: recipient.find(key))

    for key in keys[:3]:
        send(j, key)
    copy(j, place)
    for key in keys[3:]:
        send(j, key)
    j.close()
    twin = open_journal(place)

    vias = [send(twin, key).via for key in keys]

    assert vias == ["run"] * 3 + ["reconcile"] * 3
    assert [len(recipient.deliveries(key)) for key in keys] == [1] * 6
    assert [len(recipient.questions(key)) for key in keys] == [0] * 3 + [1] * 3


def test_recipient_that_knows_nothing_leaves_it_uncertain(
    j: Journal, open_journal: Open, place: Path, copy: Copier
) -> None:
    """Only a proof of absence lets it run."""
    copy(j, place)
    twin = open_journal(place)

    assert twin.effect("a", run=unused(), reconcile=Stub(None)) == Uncertain()
    assert twin.effect("b", run=lambda: "b!", reconcile=Stub(NotPerformed("no"))) == Accepted("b!", "run")
    assert phases(twin, "b") == ["intent", "failed", "intent", "accepted"]


def test_recipient_that_cannot_be_asked_is_asked_by_the_next_call(
    j: Journal, open_journal: Open, place: Path, copy: Copier
) -> None:
    """Of whatever process: nobody waits for the one that tried."""
    copy(j, place)
    twin = open_journal(place)

    with pytest.raises(EffectUnresolvedError) as caught:
        twin.effect("a", run=unused(), reconcile=Stub(Boom("no route")))

    assert caught.value.reason == "reconcile-failed"
    assert phases(twin, "a") == ["intent", "released"]
    assert twin.effect("a", run=unused(), reconcile=Stub("a!")) == Accepted("a!", "reconcile")


def test_effect_that_had_failed_is_asked_about(j: Journal, open_journal: Open, place: Path, copy: Copier) -> None:
    """It may have been done since; one that fails in the copy itself is known."""
    leave_failed(j, "a")
    copy(j, place)
    twin = open_journal(place)

    assert twin.effect("a", run=unused(), reconcile=Stub("a!")) == Accepted("a!", "reconcile")
    with pytest.raises(journal.EffectFailedError):
        twin.effect("b", run=Stub(NotPerformed("no")), reconcile=Stub(NotPerformed("no")))
    assert accept(twin, "b") == Accepted("proof", "run")


def test_run_effect_is_refused_until_the_copy_is_confirmed(
    j: Journal, open_journal: Open, place: Path, copy: Copier
) -> None:
    """Nothing is written; where there is a record, the recipient knows the key."""
    with pytest.raises(Boom):
        j.run_effect("known", Stub(Boom("boom")))
    head = copy(j, place)
    twin = open_journal(place)

    with pytest.raises(EffectConflictError, match="confirm_restored") as caught:
        twin.run_effect("new", unused())
    assert (caught.value.key, twin.head()) == ("new", head)
    assert twin.run_effect("known", lambda: 5) == 5

    twin.confirm_restored()
    assert twin.run_effect("new", lambda: 6) == 6


def test_open_intent_of_the_other_journal_is_nobodys(j: Journal, open_journal: Open, place: Path, copy: Copier) -> None:
    """Its owner lives, and will never come to the copy: the recipient is asked at once."""
    gate = Gate()
    running = threading.Thread(target=lambda: journal_effect(j, gate))
    running.start()
    gate.wait_until_entered()
    copy(j, place)
    twin = open_journal(place, wait_timeout=60.0)

    assert twin.effect("k", run=unused(), reconcile=Stub("theirs")) == Accepted("theirs", "reconcile")

    gate.open()
    running.join()


def test_steps_and_settled_effects_are_as_they_were(j: Journal, open_journal: Open, place: Path, copy: Copier) -> None:
    """Nobody is asked."""
    accept(j, "k", "proof")
    j.step("s", lambda: 1)
    copy(j, place)
    twin = open_journal(place)

    assert twin.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")
    assert twin.step("s", unused()) == 1
    assert twin.step("t", lambda: 2) == 2


@pytest.mark.parametrize("concurrency", [1, 3])
def test_walk_over_a_copy_asks_first_and_stops_where_nobody_can_be_asked(
    j: Journal, open_journal: Open, place: Path, recipient: FileRecipient, concurrency: int
) -> None:
    """Also the effects whose intents would come into the commits of the ones before."""
    for number in range(4):
        append(j, f"{number}")
    j.backup(place)
    for number in range(2):
        recipient.deliver(("mail", number))
    twin = open_journal(place)

    def prove(key: tuple[str, int]) -> int:
        found = recipient.find(key)
        if found is None:
            raise NotPerformed("they have nothing")
        return found

    def intents(committed: Any) -> list[Intent]:
        number = int(committed.op_id)
        if number == 3:
            return [Intent("nobody", unused())]
        key = ("mail", number)
        return [Intent(key, lambda: recipient.deliver(key), lambda _: prove(key))]

    settled = twin.recover(intents=intents, concurrency=concurrency)

    assert settled == 3
    assert (settled.reconciled, settled.ran) == (2, 1)
    assert settled.stopped is not None
    assert (settled.stopped.reason, settled.stopped.key) == ("conflict", "nobody")
    assert isinstance(settled.stopped.error, EffectConflictError)
    assert [len(recipient.deliveries(("mail", number))) for number in range(3)] == [1, 1, 1]


# The word that it may go on


def test_confirmed_copy_is_a_journal_like_any_other(
    j: Journal, open_journal: Open, place: Path, copy: Copier, clock: Clock
) -> None:
    """Once for all, and a second time nothing."""
    copy(j, place)
    twin = open_journal(place)
    at = clock.advance()

    twin.confirm_restored()
    said = twin.restored()
    clock.advance()
    twin.confirm_restored()

    assert said is not None
    assert said.confirmed_at == at
    assert twin.restored() == said
    assert accept(twin, "a") == Accepted("proof", "run")
    twin.close()
    again = open_journal(place)
    assert again.restored() == said
    assert again.run_effect("b", lambda: 1) == 1


def test_journal_that_is_no_copy_has_nothing_to_confirm(j: Journal, open_journal: Open) -> None:
    """Nothing is written; a read-only handle may ask as well."""
    append(j, "a")
    commits = j.stats().commits

    j.confirm_restored()

    assert j.stats().commits == commits
    assert j.restored() is None
    j.close()
    reader = open_journal(readonly=True)
    reader.confirm_restored()


def test_read_only_handle_confirms_nothing(j: Journal, open_journal: Open, place: Path, copy: Copier) -> None:
    """It writes nothing."""
    copy(j, place)
    twin = open_journal(place, readonly=True)

    with pytest.raises(JournalReadonlyError):
        twin.confirm_restored()


def test_confirmation_holds_for_handles_that_are_open(
    j: Journal, open_journal: Open, place: Path, copy: Copier, start_peer: Callable[..., Peer]
) -> None:
    """Another process is told by the row, in the transaction that decides."""
    copy(j, place)
    peer = start_peer("call", where=place, key="k", method="run_effect", run=["deliver"], wait=True)
    peer.hear("opened")

    open_journal(place).confirm_restored()
    peer.tell("go")

    assert peer.hear("accepted", "raised")["word"] == "accepted"


def test_copy_of_a_confirmed_copy_is_to_be_confirmed_again(j: Journal, open_journal: Open, tmp_path: Path) -> None:
    """It does not know what the first copy did since."""
    j.backup(tmp_path / "one")
    one = open_journal(tmp_path / "one")
    one.confirm_restored()
    append(one, "a")

    one.backup(tmp_path / "two")

    said = open_journal(tmp_path / "two").restored()
    assert isinstance(said, Restored)
    assert (said.head, said.confirmed_at) == (1, None)
