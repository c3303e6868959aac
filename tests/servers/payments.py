"""What the services under test do: keep each payment as an operation, and charge it at the recipient.

Everything here is for processes of a server; a service finds its way by its environment, as services do.
"""

import json
import os
import pathlib
import urllib.request
from typing import Any
from urllib.parse import quote

import msgspec

import journal
from journal import Accepted, Committed, Intent, Settled, Signal
from tests.crash.support.lines import append_line

JOURNAL = os.environ.get("PAYMENTS_JOURNAL", "")
RECIPIENT = os.environ.get("PAYMENTS_RECIPIENT", "")
WAIT_TIMEOUT = float(os.environ.get("PAYMENTS_WAIT_TIMEOUT", "60"))
STREAM = "payments"


class Payment(msgspec.Struct, frozen=True):
    """The operation."""

    name: str
    cents: int


def note(word: str, **facts: Any) -> None:
    """Tells the test something, with the process that it happened in."""
    append_line(pathlib.Path(os.environ["PAYMENTS_NOTES"]), {"word": word, "pid": os.getpid(), **facts})


def key_of(name: str) -> tuple[str, str]:
    """The key of a payment's one effect."""
    return ("charge", name)


def open_journal() -> journal.Journal:
    """A handle for this process."""
    return journal.open(JOURNAL, operation=Payment, wait_timeout=WAIT_TIMEOUT)


def ask_recipient(path: str, body: Any = None) -> Any:
    """What the recipient answers: to a `POST` where there is a body, else to a `GET`."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(RECIPIENT + quote(path), data)) as answer:
        return json.load(answer)


def intents(committed: Committed) -> list[Intent]:
    """The one charge of a payment."""
    payment = committed.operation

    def run() -> Any:
        note("running", name=payment.name)
        return ask_recipient(f"/deliveries/{payment.name}", {"cents": payment.cents})["id"]

    def reconcile(signal: Signal) -> Any:
        return next(iter(ask_recipient(f"/deliveries/{payment.name}")["ids"]), None)

    return [Intent(key_of(payment.name), run, reconcile)]


def note_recovery(settled: Settled) -> None:
    """Tells the test what became of what an earlier life left open."""
    reason = settled.stopped.reason if settled.stopped else None
    note("recovered", ran=settled.ran, reused=settled.reused, reconciled=settled.reconciled, stopped=reason)


def pay(j: journal.Journal, name: str, cents: int) -> dict[str, Any]:
    """Commits a payment, charges it, and says what is on record."""
    committed = j.append(STREAM, Payment(name, cents), op_id=name)
    assert isinstance(committed, Committed)
    [charge] = intents(committed)
    assert charge.reconcile is not None
    outcome = j.effect(charge.key, run=charge.run, reconcile=charge.reconcile)
    assert isinstance(outcome, Accepted)
    return {"pid": os.getpid(), "position": committed.position, "proof": outcome.proof, "via": outcome.via}
