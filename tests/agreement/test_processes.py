"""Eight processes at a barrier, with a recipient that cannot deduplicate."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from journal import Accepted, Journal

from .support import FileRecipient, Key, Peer, phases, unused, wait_until

Start = Callable[..., Peer]
COUNT = 8


def start_all(start_peer: Start, scenario: str = "call", **arguments: Any) -> list[Peer]:
    """Starts eight processes that have the journal open and wait for the word."""
    peers = [start_peer(scenario, wait=True, **arguments) for _ in range(COUNT)]
    for peer in peers:
        peer.hear("opened")
    return peers


def let_go(peers: list[Peer]) -> None:
    """Lets them all go on."""
    for peer in peers:
        peer.tell("go")


KEY: Key = ("mail", 7)


@pytest.mark.parametrize("method", ["effect", "run_effect", "step"])
def test_eight_processes_share_one_run(j: Journal, start_peer: Start, recipient: FileRecipient, method: str) -> None:
    """One delivery, eight equal answers; of a step, whose body comes before its record, eight equal answers."""
    peers = start_all(start_peer, key=KEY, method=method, run=["deliver"], reconcile=["find"])
    let_go(peers)
    answers = [peer.hear("accepted") for peer in peers]

    assert {answer["proof"] for answer in answers} == {answers[0]["proof"]}
    if method != "step":
        assert recipient.deliveries(KEY) == [answers[0]["proof"]]
        assert phases(j, KEY) == ["intent", "accepted"]
    assert recipient.questions(KEY) == []
    for peer in peers:
        peer.finish()


def test_owner_killed_midway_is_reconciled_and_nobody_runs(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """The owner dies after the delivery: one of the others reconciles, none runs, seven equal answers."""
    peers = start_all(start_peer, key=KEY, run=["deliver", "running", "listen"], reconcile=["find"])
    let_go(peers)
    owner = first_to_run(peers, recipient)
    owner.hear("running")
    owner.kill()
    answers = [peer.hear("accepted") for peer in peers if peer is not owner]

    assert {(answer["proof"], answer["via"]) for answer in answers} == {(owner.pid, "reconcile")}
    assert recipient.deliveries(KEY) == [owner.pid]
    assert phases(j, KEY) == ["intent", "accepted"]
    assert recipient.questions(KEY)


def first_to_run(peers: list[Peer], recipient: FileRecipient) -> Peer:
    """Gives the process that delivered first."""
    wait_until(lambda: bool(recipient.deliveries(KEY)))
    return next(peer for peer in peers if peer.pid == recipient.deliveries(KEY)[0])


def test_owner_killed_before_the_delivery_where_absence_is_proved(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """The recipient proves that nothing came: one of the others runs, once, and all agree."""
    owner = start_peer("call", key=KEY, run=["running", "listen"])
    owner.hear("opened")
    owner.hear("running")
    peers = start_all(start_peer, key=KEY, run=["deliver"], reconcile=["prove"])
    let_go(peers)
    owner.kill()
    answers = [peer.hear("accepted") for peer in peers]

    (runner,) = recipient.deliveries(KEY)
    assert {(answer["proof"], answer["via"]) for answer in answers} == {(runner, "run")}
    assert phases(j, KEY) == ["intent", "failed", "intent", "accepted"]


def test_owner_killed_before_the_delivery_is_uncertain_for_all(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """No record proves nothing: all seven say uncertain, and nobody runs."""
    owner = start_peer("call", key=KEY, run=["running", "listen"])
    owner.hear("opened")
    owner.hear("running")
    peers = start_all(start_peer, key=KEY, run=["deliver"], reconcile=["find"])
    let_go(peers)
    owner.kill()
    for peer in peers:
        peer.hear("uncertain")

    assert recipient.deliveries(KEY) == []
    assert phases(j, KEY) == ["intent", "uncertain"]


def test_idempotent_owner_killed_midway_is_run_again_once(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """`run_effect`: one of the others runs again under the same key, and all agree."""
    owner = start_peer("call", method="run_effect", key=KEY, run=["deliver", "running", "listen"])
    owner.hear("opened")
    owner.hear("running")
    peers = start_all(start_peer, key=KEY, method="run_effect", run=["deliver"])
    let_go(peers)
    owner.kill()
    answers = [peer.hear("accepted") for peer in peers]

    deliveries = recipient.deliveries(KEY)
    assert len(deliveries) == 2
    assert {answer["proof"] for answer in answers} == {deliveries[1]}
    assert phases(j, KEY) == ["intent", "intent", "accepted"]


def test_owners_killed_one_after_the_other_deliver_once(
    j: Journal, start_peer: Start, recipient: FileRecipient
) -> None:
    """Each process dies where it stands, in the run or in its reconcile; the last one alive finds the one delivery."""
    peers = start_all(start_peer, key=KEY, run=["deliver", "die"], reconcile=["die"])
    let_go(peers)
    for peer in peers:
        peer.wait_until_dead()

    assert len(recipient.deliveries(KEY)) == 1
    outcome = j.effect(KEY, run=unused(), reconcile=lambda _: recipient.find(KEY))
    assert outcome == Accepted(recipient.deliveries(KEY)[0], "reconcile")


def test_eight_processes_appending_leave_no_gap(j: Journal, start_peer: Start) -> None:
    """Every acknowledged operation is there once; sequences and positions are dense."""
    peers = [
        start_peer("append", stream="s", op_ids=[f"{n}-{index}" for index in range(20)], wait=True)
        for n in range(COUNT)
    ]
    for peer in peers:
        peer.hear("opened")
    let_go(peers)
    told = {(said := peer.hear("appended"))["position"]: said["op_id"] for peer in peers for _ in range(20)}

    assert {c.position: c.op_id for c in j.read()} == told
    assert [c.position for c in j.read()] == [c.sequence for c in j.read("s")] == list(range(1, 161))


def test_eight_processes_with_one_op_id_commit_once(j: Journal, start_peer: Start) -> None:
    """One commit, and seven are answered with it."""
    peers = start_all(start_peer, "append", stream="s", op_ids=["same"])
    let_go(peers)
    answers = [peer.hear("appended") for peer in peers]

    assert Counter((a["position"], a["sequence"]) for a in answers) == {(1, 1): COUNT}
    assert Counter(a["repeated"] for a in answers) == {True: COUNT - 1, False: 1}
    assert j.head() == 1


def test_eight_processes_with_one_expectation_let_one_through(j: Journal, start_peer: Start) -> None:
    """Of eight that expect an empty stream one is first, and the others are told."""
    peers = [start_peer("append", stream="s", op_ids=[str(n)], expected=0, wait=True) for n in range(COUNT)]
    for peer in peers:
        peer.hear("opened")
    let_go(peers)
    answers = [peer.hear("appended", "raised") for peer in peers]

    assert Counter(a.get("error") for a in answers) == {None: 1, "SequenceConflictError": COUNT - 1}
    assert j.head() == 1
