"""uvicorn with two workers, spawned processes that each run the lifespan of the FastAPI application."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import httpx

import journal

from .payments import Payment
from .support import PATIENCE, Recipient, Served, wait_until


def start(served: Served) -> None:
    """Starts uvicorn, and returns when both workers serve; it closes no connection of its own accord."""
    command = [sys.executable, "-m", "uvicorn", f"{__package__}.app:app", "--fd", "{fd}"]
    served.start(*command, "--workers", "2", "--timeout-keep-alive", "600")
    wait_until(lambda: len(served.notes("recovered")) == 2)


def test_every_worker_appends_and_runs(served: Served, recipient: Recipient) -> None:
    """Each of two workers pays with a journal that it opened for itself."""
    start(served)
    recipient.hold("closed")

    with ThreadPoolExecutor() as threads, served.client() as one, served.client() as other:
        first = one.post("/payments/first", json={"cents": 100}).json()
        # Over the same connection, so the same worker, which takes nothing new until the gate opens.
        standing = threads.submit(one.get, "/gates/closed")
        recipient.wait_until_visited("closed")
        second = other.post("/payments/second", json={"cents": 100}).json()
        recipient.release()
        assert standing.result().json()["pid"] == first["pid"]

    assert {first["pid"], second["pid"]} == {note["pid"] for note in served.notes("recovered")}
    assert [recipient.deliveries("first"), recipient.deliveries("second")] == [[first["proof"]], [second["proof"]]]
    assert served.stop() == 0
    assert len(served.notes("closed")) == 2
    with journal.open(served.journal, operation=Payment) as j:
        assert [committed.operation.name for committed in j.read()] == ["first", "second"]
        assert list(j.verify()) == []


def test_one_key_through_both_workers_is_delivered_once(served: Served, recipient: Recipient) -> None:
    """While one worker has the effect in flight, the other one waits for its outcome, and serves meanwhile."""
    start(served)
    recipient.hold("shared", "closed")

    with ThreadPoolExecutor() as threads, served.client() as one, served.client() as two, served.client() as three:
        # Two of three connections are to the same worker.
        workers = {client: client.get("/health").json()["pid"] for client in (one, two, three)}
        pair = next(pair for pair in combinations(workers, 2) if workers[pair[0]] == workers[pair[1]])
        first = threads.submit(pair[0].post, "/payments/shared", json={"cents": 100})
        recipient.wait_until_delivered("shared")
        standing = threads.submit(pair[1].get, "/gates/closed")
        recipient.wait_until_visited("closed")
        second = threads.submit(httpx.post, f"{served.url}/payments/shared", json={"cents": 100}, timeout=PATIENCE)
        wait_until(lambda: len(served.notes("appended")) == 2)
        with served.client() as other:
            serving = other.get("/health").json()["pid"]
        recipient.release()
        paid = [first.result().json(), second.result().json()]
        standing.result()

    assert {paid[0]["pid"], paid[1]["pid"]} == {note["pid"] for note in served.notes("recovered")}
    assert serving == paid[1]["pid"]
    assert [answer["proof"] for answer in paid] == recipient.deliveries("shared") * 2 == ["delivery-1"] * 2
