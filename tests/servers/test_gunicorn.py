"""gunicorn with preload: workers that open for themselves, and the master that opened before the fork."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import journal

from .payments import Payment, key_of
from .support import Recipient, Served, wait_until

CONFIG = Path(__file__).with_name("gunicorn_config.py")


def start(served: Served, opened: str, worker_count: int, *options: str, **environment: str) -> None:
    """Starts gunicorn, with sync workers, which take one request at a time, unless the options say otherwise."""
    command = [sys.executable, "-m", "gunicorn", "--config", str(CONFIG), "--bind", "fd://{fd}"]
    served.start(*command, "--workers", str(worker_count), *options, PAYMENTS_OPENED=opened, **environment)
    wait_until(lambda: len(served.notes("forked")) == worker_count)


def pay(served: Served, name: str, path: str = "/payments/") -> Any:
    """The answer to one payment, over a connection of its own."""
    with served.client() as client:
        answer = client.post(f"{path}{name}", json={"cents": 100})
        assert answer.is_success, answer.text
        return answer.json()


@pytest.mark.parametrize("opened", ["in post_fork", "at first request"])
def test_every_worker_that_opens_for_itself_appends_and_runs(served: Served, recipient: Recipient, opened: str) -> None:
    """Three workers of a preloaded application have an effect in flight at once, each with a handle of its own."""
    names = ["first", "second", "third"]
    start(served, opened, worker_count=3)
    recipient.hold(*names)

    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(pay, served, name) for name in names]
        recipient.wait_until_delivered(*names)
        recipient.release()
        paid = [answer.result() for answer in answers]

    assert {answer["pid"] for answer in paid} == {note["pid"] for note in served.notes("forked")}
    assert [recipient.deliveries(name) for name in names] == [[answer["proof"]] for answer in paid]
    assert served.stop() == 0
    assert len(served.notes("closed")) == 3
    with journal.open(served.journal, operation=Payment) as j:
        assert {committed.operation.name for committed in j.read()} == set(names)
        assert list(j.verify()) == []


def test_one_key_through_all_workers_is_delivered_once(served: Served, recipient: Recipient) -> None:
    """While one worker has it in flight the others wait for its outcome; whoever comes later finds it."""
    start(served, "in post_fork", worker_count=3)
    recipient.hold("one")

    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(pay, served, "one", "/gates/together/payments/") for _ in range(3)]
        recipient.wait_until_visited("together", times=3)
        recipient.wait_until_delivered("one")
        recipient.release()
        paid = [answer.result() for answer in answers]
        later = list(threads.map(lambda _: pay(served, "one"), range(30)))

    assert len({answer["pid"] for answer in paid}) == 3
    assert recipient.deliveries("one") == ["delivery-1"]
    assert {answer["proof"] for answer in paid + later} == {"delivery-1"}
    assert {answer["position"] for answer in paid + later} == {1}


def test_replaced_worker_reconciles_what_a_killed_one_left(served: Served, recipient: Recipient) -> None:
    """gunicorn replaces a worker that dies in the middle of a run, and the new one's recovery asks the recipient."""
    start(served, "in post_fork", worker_count=2)
    recipient.hold("cut off")

    with ThreadPoolExecutor() as threads, served.client() as client:
        answer = threads.submit(client.post, "/payments/cut off", json={"cents": 100})
        recipient.wait_until_delivered("cut off")
        with journal.open(served.journal, operation=Payment, readonly=True) as j:
            record = j.record(key_of("cut off"))
        assert record is not None
        assert record.phase == "intent"
        [running] = served.notes("running")
        os.kill(running["pid"], signal.SIGKILL)
        assert answer.exception() is not None
    wait_until(lambda: len(served.notes("recovered")) == 3)

    newest = served.notes("recovered")[-1]
    assert newest["pid"] not in {note["pid"] for note in served.notes("forked")[:2]}
    assert (newest["reconciled"], newest["ran"], newest["stopped"]) == (1, 0, None)
    assert pay(served, "cut off") | {"pid": 0} == {"pid": 0, "position": 1, "proof": "delivery-1", "via": "reconcile"}
    assert recipient.deliveries("cut off") == ["delivery-1"]


def test_worker_that_comes_up_waits_no_longer_for_another_one(served: Served, recipient: Recipient) -> None:
    """Its recovery stops at an effect that a living worker has in flight, after `wait_timeout`, and harms nothing."""
    start(served, "in post_fork", 2, PAYMENTS_WAIT_TIMEOUT="0.2")
    recipient.hold("slow")

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(pay, served, "slow")
        recipient.wait_until_delivered("slow")
        [running] = served.notes("running")
        [idle] = {note["pid"] for note in served.notes("forked")} - {running["pid"]}
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: len(served.notes("recovered")) == 3)
        recipient.release()
        paid = answer.result()

    newest = served.notes("recovered")[-1]
    assert (newest["stopped"], newest["ran"], newest["reconciled"]) == ("in_flight", 0, 0)
    assert (paid["pid"], paid["via"]) == (running["pid"], "run")
    assert recipient.deliveries("slow") == [paid["proof"]]


def test_threads_of_several_workers_deliver_each_key_once(served: Served, recipient: Recipient) -> None:
    """Workers with threads join runs within a process, and wait for those of another one."""
    names = ["one", "two", "three"]
    start(served, "in post_fork", 2, "--threads", "8")
    recipient.hold(*names)

    with ThreadPoolExecutor(12) as threads:
        answers = [threads.submit(pay, served, name) for name in names * 4]
        recipient.wait_until_delivered(*names)
        recipient.release()
        paid = [answer.result() for answer in answers]

    assert [recipient.deliveries(name) for name in names] == [[answer["proof"]] for answer in paid[:3]]
    assert [answer["proof"] for answer in paid] == [answer["proof"] for answer in paid[:3]] * 4


def test_recycled_workers_lose_and_double_nothing(served: Served, recipient: Recipient) -> None:
    """Workers that are replaced after every few requests close their handles, and what they did is found."""
    names = [f"payment-{number}" for number in range(8)]
    start(served, "in post_fork", 2, "--max-requests", "3")

    with ThreadPoolExecutor(4) as threads:
        paid = list(threads.map(lambda name: pay(served, name), names * 3))
    wait_until(lambda: len(served.notes("closed")) >= 6)

    assert [recipient.deliveries(name) for name in names] == [[answer["proof"]] for answer in paid[:8]]
    assert [answer["proof"] for answer in paid] == [answer["proof"] for answer in paid[:8]] * 3
    assert {answer["via"] for answer in paid} == {"run"}


def test_worker_is_refused_the_handle_of_its_master(served: Served, recipient: Recipient) -> None:
    """Opened at import under preload, the journal refuses each worker's first use and says what to do instead."""
    start(served, "at import", worker_count=2)
    recipient.hold("together")

    with ThreadPoolExecutor() as threads, served.client() as one, served.client() as other:
        path = "/gates/together/payments/refused"
        asked = [threads.submit(client.post, path, json={"cents": 100}) for client in (one, other)]
        recipient.wait_until_visited("together", times=2)
        recipient.release()
        answers = [answer.result() for answer in asked]

    assert [answer.status_code for answer in answers] == [500, 500]
    assert {answer.json()["pid"] for answer in answers} == {note["pid"] for note in served.notes("forked")}
    for answer in answers:
        said = answer.json()["error"]
        assert f"opened by process {served.pid} before a fork" in said
        assert "open it again in this process" in said
    assert recipient.deliveries("refused") == []


def test_master_goes_on_with_its_own_handle(served: Served, recipient: Recipient) -> None:
    """Workers that were refused, or killed, leave the master's handle as it was: it appends before and after."""
    start(served, "at import", worker_count=2)
    with served.client() as client:
        assert client.post("/payments/refused", json={"cents": 100}).status_code == 500
    os.kill(served.notes("forked")[0]["pid"], signal.SIGKILL)
    wait_until(lambda: len(served.notes("forked")) == 3)

    assert served.stop() == 0

    appended = served.notes("appended")
    assert [note["sequence"] for note in appended] == [1, 2, 3, 4]
    assert {note["pid"] for note in appended} == {served.pid}
    with journal.open(served.journal, operation=Payment) as j:
        assert [committed.operation.cents for committed in j.read("master")] == [0, 1, 2, 3]
        assert list(j.verify()) == []
