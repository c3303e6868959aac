"""A FastAPI application over the asyncio face, with one worker: clients that go, kills, ordered ends, and load."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx
import pytest

import journal

from .payments import Payment
from .support import PATIENCE, Recipient, Served, wait_until

ENDED = {0, -signal.SIGTERM}
"""How uvicorn ends in order: newer versions by the very signal that told them to."""


def start(served: Served, *options: str, **environment: str) -> None:
    """Starts uvicorn, and returns when it serves."""
    command = [sys.executable, "-m", "uvicorn", f"{__package__}.app:app", "--fd", "{fd}"]
    served.start(*command, *options, **environment)


def pay(served: Served, name: str, **params: Any) -> httpx.Response:
    """The answer to one payment."""
    with served.client() as client:
        return client.post(f"/payments/{name}", json={"cents": 100}, params=params)


def phase(served: Served, name: str) -> str | None:
    """What the service has on record of a payment."""
    with served.client() as client:
        found: str | None = client.get(f"/payments/{name}").json()["phase"]
        return found


def nothing() -> None:
    """Does nothing."""


def ask(
    served: Served,
    paths: Sequence[str],
    *,
    until: Callable[[], None] = nothing,
    leaver_count: int = 0,
    then: Callable[[], None] = nothing,
) -> list[Any]:
    """Asks all of these at once: after `until` the first clients close their connections, and then the rest waits.

    Gives an answer or an exception for each, in order.
    """

    async def ask_all() -> list[Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE, limits=limits) as client:
            asked = [asyncio.create_task(client.post(path, json={"cents": 100})) for path in paths]
            try:
                await asyncio.to_thread(until)
                await leave(asked[:leaver_count])
                await asyncio.to_thread(then)
                return await asyncio.gather(*asked, return_exceptions=True)
            finally:
                await leave(asked)

    return asyncio.run(ask_all())


async def leave(asked: list[asyncio.Task[httpx.Response]]) -> None:
    """Closes the connections of requests that have no answer yet."""
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


def proofs(answers: list[Any]) -> list[str]:
    """What was answered; all must be answers."""
    assert [answer for answer in answers if not (isinstance(answer, httpx.Response) and answer.is_success)] == []
    return [answer.json()["proof"] for answer in answers]


def leave_waiting_run(served: Served, recipient: Recipient, name: str) -> None:
    """A run in flight at a slow recipient, with nobody in the service who waits for it."""
    recipient.hold(name)
    ask(served, [f"/streams/{name}"], until=lambda: recipient.wait_until_delivered(name), leaver_count=1)
    wait_until(lambda: len(served.notes("cancelled")) == 1)


def check_journal(served: Served, *names: str) -> None:
    """With the server gone: one operation and one accepted effect for each payment, in a journal that is whole."""
    with journal.open(served.journal, operation=Payment) as j:
        assert sorted(committed.operation.name for committed in j.read()) == sorted(names)
        assert [record.phase for record in j.effects()] == ["accepted"] * len(names)
        assert list(j.verify()) == []


def test_run_goes_on_when_its_client_disconnects(served: Served, recipient: Recipient) -> None:
    """The server leaves the handler of such a request alone, and its outcome is recorded."""
    start(served)
    recipient.hold("slow")
    ask(served, ["/payments/slow"], until=lambda: recipient.wait_until_delivered("slow"), leaver_count=1)

    assert phase(served, "slow") == "intent"
    recipient.release()
    wait_until(lambda: phase(served, "slow") == "accepted")

    assert proofs([pay(served, "slow")]) == recipient.deliveries("slow") == ["delivery-1"]
    assert pay(served, "slow").json()["via"] == "run"


def test_run_goes_on_when_its_caller_is_cancelled(served: Served, recipient: Recipient) -> None:
    """A handler that the server cancels when its client disconnects ends only its own wait."""
    start(served)
    leave_waiting_run(served, recipient, "slow")

    assert phase(served, "slow") == "intent"
    recipient.release()
    wait_until(lambda: phase(served, "slow") == "accepted")

    assert proofs([pay(served, "slow")]) == recipient.deliveries("slow") == ["delivery-1"]
    assert pay(served, "slow").json()["via"] == "run"


def test_repeat_joins_the_run_whose_client_is_gone(served: Served, recipient: Recipient) -> None:
    """A request that comes again while the recipient is still slow waits for the first one's run."""
    start(served)
    leave_waiting_run(served, recipient, "slow")

    repeated = ask(served, ["/payments/slow"] * 5 + ["/payments/slow?within=0.05"], then=recipient.release)

    assert repeated[-1].status_code in {200, 202}
    assert proofs(repeated[:5]) == ["delivery-1"] * 5
    assert recipient.deliveries("slow") == ["delivery-1"]


def test_caller_that_runs_out_of_time_finds_the_outcome_later(served: Served, recipient: Recipient) -> None:
    """A time-out around the call ends the wait, and not the run."""
    start(served)
    recipient.hold("slow")

    while not recipient.deliveries("slow"):  # nothing is begun where the time-out came before the intent
        assert pay(served, "slow", within=0.05).status_code == 202
    recipient.release()
    wait_until(lambda: phase(served, "slow") == "accepted")

    assert proofs([pay(served, "slow", within=PATIENCE)]) == recipient.deliveries("slow") == ["delivery-1"]


def test_tasks_and_threads_share_one_run(served: Served, recipient: Recipient) -> None:
    """Handlers on the event loop and plain ones in threads, through `a.sync`, get one outcome of one delivery."""
    start(served)
    recipient.hold("shared")

    answers = ask(
        served,
        ["/payments/shared", "/threads/shared"] * 5,
        until=lambda: recipient.wait_until_delivered("shared"),
        then=recipient.release,
    )

    assert proofs(answers) == ["delivery-1"] * 10
    assert recipient.deliveries("shared") == ["delivery-1"]


def test_restarted_server_reconciles_before_it_serves(served: Served, recipient: Recipient) -> None:
    """Killed while the recipient was slow, the next life asks the recipient, and a repeat gets what it said."""
    start(served)
    recipient.hold("cut off")

    [broken] = ask(
        served, ["/payments/cut off"], until=lambda: recipient.wait_until_delivered("cut off"), then=served.kill
    )
    recipient.release()
    start(served)

    assert isinstance(broken, httpx.TransportError)
    assert [note["reconciled"] for note in served.notes("recovered")] == [0, 1]
    assert proofs([pay(served, "cut off")]) == recipient.deliveries("cut off") == ["delivery-1"]
    assert pay(served, "cut off").json()["via"] == "reconcile"


def test_server_that_is_told_to_end_answers_who_waits(served: Served, recipient: Recipient) -> None:
    """SIGTERM in the middle of a run: the client gets its outcome, and the journal is closed after that."""
    start(served)
    recipient.hold("slow")

    def end() -> None:
        served.send(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in served.log())
        recipient.release()

    answers = ask(served, ["/payments/slow"], until=lambda: recipient.wait_until_delivered("slow"), then=end)

    assert served.wait_until_over() in ENDED
    assert len(served.notes("closed")) == 1
    assert proofs(answers) == recipient.deliveries("slow") == ["delivery-1"]
    check_journal(served, "slow")


def test_close_waits_for_a_run_whose_client_is_gone(served: Served, recipient: Recipient) -> None:
    """SIGTERM when nobody waits any more for a run: lifespan's close waits for it, and its outcome is recorded."""
    start(served)
    leave_waiting_run(served, recipient, "slow")

    served.send(signal.SIGTERM)
    wait_until(lambda: len(served.notes("closing")) == 1)
    assert served.is_running
    assert served.notes("closed") == []
    recipient.release()

    assert served.wait_until_over() in ENDED
    assert len(served.notes("closed")) == 1
    assert recipient.deliveries("slow") == ["delivery-1"]
    check_journal(served, "slow")


def test_close_waits_for_a_run_whose_handler_was_cancelled_at_the_end(served: Served, recipient: Recipient) -> None:
    """A bound on uvicorn's patience cancels the handler that still waits, and not the run."""
    start(served, "--timeout-graceful-shutdown", "1")
    recipient.hold("slow")

    def end() -> None:
        served.send(signal.SIGTERM)
        wait_until(lambda: len(served.notes("closing")) == len(served.notes("cancelled")) == 1)
        recipient.release()

    ask(served, ["/payments/slow"], until=lambda: recipient.wait_until_delivered("slow"), then=end)

    assert served.wait_until_over() in ENDED
    assert len(served.notes("closed")) == 1
    assert recipient.deliveries("slow") == ["delivery-1"]
    check_journal(served, "slow")


def test_close_gives_up_a_run_that_does_not_end(served: Served, recipient: Recipient) -> None:
    """After `wait_timeout` the close ends the server with the intent open, and the next life asks the recipient."""
    start(served, PAYMENTS_WAIT_TIMEOUT="0.1")
    leave_waiting_run(served, recipient, "never answered")

    assert served.stop() in ENDED
    assert len(served.notes("closed")) == 1
    start(served)

    assert [note["reconciled"] for note in served.notes("recovered")] == [0, 1]
    assert proofs([pay(served, "never answered")]) == recipient.deliveries("never answered") == ["delivery-1"]


@pytest.mark.parametrize("event", ["nothing", "disconnect", "kill", "end"])
def test_fifty_requests_over_ten_payments_are_ten_deliveries(
    served: Served, recipient: Recipient, event: Literal["nothing", "disconnect", "kill", "end"]
) -> None:
    """Whatever happens while ten effects are in flight and the other calls wait for them, each is delivered once."""
    names = [f"payment-{number}" for number in range(10)]
    start(served)
    recipient.hold(*names)

    def happen() -> None:
        if event == "kill":
            served.kill()
        elif event == "end":
            served.send(signal.SIGTERM)
        recipient.release()
        if event in {"kill", "end"}:
            served.wait_until_over()
            start(served)

    where = "streams" if event == "disconnect" else "payments"
    answers = ask(
        served,
        [f"/{where}/{name}" for name in names] * 5,
        until=lambda: recipient.wait_until_delivered(*names),
        leaver_count=25 if event == "disconnect" else 0,
        then=happen,
    )
    repeated = ask(served, [f"/payments/{name}" for name in names] * 5)

    delivered = [recipient.deliveries(name) for name in names]
    assert [len(each) for each in delivered] == [1] * 10
    assert proofs(repeated) == [delivery for [delivery] in delivered] * 5
    assert {answer.json()["via"] for answer in repeated} == {"reconcile" if event == "kill" else "run"}
    match event:
        case "nothing":
            assert proofs(answers) == proofs(repeated)
        case "disconnect":
            assert [answer.text.split()[-1] for answer in answers[25:]] == proofs(repeated)[25:]
        case "kill":
            assert served.notes("recovered")[-1]["reconciled"] == 10
        case "end":
            assert len(served.notes("closed")) == 1
    assert served.stop() in ENDED
    check_journal(served, *names)
