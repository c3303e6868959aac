"""The FastAPI service that uvicorn runs: the journal's asyncio face, opened and closed by the application's lifespan."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
from fastapi import Body, FastAPI, Response
from fastapi.responses import StreamingResponse

import journal
from journal import Accepted, AsyncJournal, Committed, Intent

from . import payments
from .payments import Payment, key_of, note

Cents = Annotated[int, Body(embed=True)]


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens the journal, settles what an earlier life left open, and closes it when nobody is served any more."""
    global a, recipient
    # Opened first, so closed last: a run that the journal's close waits for still needs it.
    async with httpx.AsyncClient(base_url=payments.RECIPIENT, timeout=None) as recipient:
        async with journal.open_async(payments.JOURNAL, operation=Payment, wait_timeout=payments.WAIT_TIMEOUT) as a:
            payments.note_recovery(await a.recover(intents=intents))
            yield
            note("closing")
        note("closed")


a: AsyncJournal
recipient: httpx.AsyncClient
app = FastAPI(lifespan=lifespan)


def intents(committed: Committed) -> list[Intent]:
    """The one charge of a payment: it is run on the event loop, and reconciled by a plain function."""
    payment = committed.operation

    async def run() -> Any:
        note("running", name=payment.name)
        answer = await recipient.post(f"/deliveries/{payment.name}", json={"cents": payment.cents})
        return answer.raise_for_status().json()["id"]

    [charge] = payments.intents(committed)
    return [Intent(charge.key, run, charge.reconcile)]


async def pay(name: str, cents: int, within: float | None = None) -> dict[str, Any]:
    """Commits a payment, charges it, and says what is on record; `TimeoutError` where that takes too long."""
    committed = await a.append(payments.STREAM, Payment(name, cents), op_id=name)
    assert isinstance(committed, Committed)
    note("appended", name=name)
    [charge] = intents(committed)
    assert charge.reconcile is not None
    try:
        async with asyncio.timeout(within):
            outcome = await a.effect(charge.key, run=charge.run, reconcile=charge.reconcile)
    except asyncio.CancelledError:
        note("cancelled", name=name)
        raise
    assert isinstance(outcome, Accepted)
    return {"pid": os.getpid(), "position": committed.position, "proof": outcome.proof, "via": outcome.via}


@app.post("/payments/{name}")
async def post_payment(name: str, cents: Cents, response: Response, within: float | None = None) -> dict[str, Any]:
    """Pays, and says that it is under way where there is no outcome within so many seconds."""
    try:
        return await pay(name, cents, within)
    except TimeoutError:
        response.status_code = 202
        return {"pid": os.getpid()}


@app.post("/streams/{name}")
async def stream_payment(name: str, cents: Cents) -> StreamingResponse:
    """Pays, while the client sees that something happens; Starlette cancels it when the client goes."""

    async def lines() -> AsyncIterator[str]:
        yield "under way\n"
        yield (await pay(name, cents))["proof"]

    return StreamingResponse(lines())


@app.post("/threads/{name}")
def post_payment_in_thread(name: str, cents: Cents) -> dict[str, Any]:
    """Pays in one of the threads in which FastAPI calls plain functions."""
    return payments.pay(a.sync, name, cents)


@app.get("/payments/{name}")
async def get_payment(name: str) -> dict[str, Any]:
    """What is on record."""
    record = await a.record(key_of(name))
    return {"phase": record.phase if record else None, "via": record.via if record else None}


@app.get("/health")
async def health() -> dict[str, Any]:
    """That it serves, and in which process."""
    return {"pid": os.getpid()}


@app.get("/gates/{gate}")
async def stand_still(gate: str) -> dict[str, Any]:
    """Blocks the event loop until a gate opens, so that this worker takes no request meanwhile."""
    payments.ask_recipient(f"/gates/{gate}")
    return {"pid": os.getpid()}
