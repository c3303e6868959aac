"""The WSGI service that gunicorn runs; `preload` imports it in the master, before the workers are forked.

`PAYMENTS_OPENED` says who opens the journal: the `post_fork` hook, a worker's first request, or, wrongly, the import.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import journal
from journal import JournalForkedError

from . import payments

OPENED = os.environ["PAYMENTS_OPENED"]

_lock = threading.Lock()
_opened: journal.Journal | None = payments.open_journal() if OPENED == "at import" else None


def handle() -> journal.Journal:
    """The handle, opened where nobody has opened one."""
    global _opened
    with _lock:
        if _opened is None:
            _opened = payments.open_journal()
        return _opened


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """`POST /payments/NAME` pays; `GET /health` answers; whatever comes through `/gates/NAME/...` waits there first."""
    path = environ["PATH_INFO"]
    if path.startswith("/gates/"):
        _, _, gate, path = path.split("/", 3)
        payments.ask_recipient(f"/gates/{gate}")
    status = "200 OK"
    answer: dict[str, Any] = {"pid": os.getpid()}
    if environ["REQUEST_METHOD"] == "POST":
        cents = json.load(environ["wsgi.input"])["cents"]
        try:
            answer = payments.pay(handle(), path.rpartition("/")[2], cents)
        except JournalForkedError as error:
            status, answer = "500 Internal Server Error", {"pid": os.getpid(), "error": str(error)}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
