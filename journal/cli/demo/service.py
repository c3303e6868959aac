"""The service that embeds the journal.

`python -m journal.cli.demo.service DIRECTORY PORT SEED` appends each delivery that it is sent, acknowledges it, and
has its effect performed by the recipient. It may be killed at any moment: at the next start `recover()` settles
whatever the last one left behind.
"""

import sys
from pathlib import Path

import msgspec

import journal
from journal import Committed, Intent, Journal, Key, Signal
from journal.cli.demo import feed
from journal.cli.demo.client import Client
from journal.cli.demo.deliveries import Delivery
from journal.cli.demo.kinds import Kind, kind_of
from journal.cli.demo.latency import Latency
from journal.cli.demo.messages import Request

STREAM = "webhooks"
CURSOR = "service"
ACTION = "notify"


class Service:
    """One life of the service, over an open journal."""

    def __init__(self, j: Journal, client: Client) -> None:
        self._journal = j
        self._client = client

    def recover(self) -> None:
        """Settle what was left behind by the lives before, or exit where it cannot be settled now."""
        feed.say(feed.Opened(unfinished=len(self._journal.unfinished())))
        settled = self._journal.recover(self._journal.cursor(CURSOR), intents=self._intents)
        self._journal.save_cursor(CURSOR, settled)
        if settled.stopped is not None:
            sys.exit(f"recovery stopped: {settled.stopped}")

    def serve(self) -> None:
        """Take over every delivery that is sent: durable first, acknowledged then, its effect last."""
        for delivery in feed.receive():
            committed = self._journal.append(STREAM, delivery, op_id=delivery.delivery)
            # Content is dropped by compaction alone, and nothing here compacts.
            assert isinstance(committed, Committed)
            feed.say(feed.Acknowledged(repeated=committed.repeated))
            for intent in self._intents(committed):
                self._settle(intent)

    def _settle(self, intent: Intent) -> None:
        """Perform the effect of a delivery; for one that had come before, reuse what is on record."""
        if intent.reconcile is None:
            self._journal.run_effect(intent.key, intent.run, request=intent.request)
        else:
            self._journal.effect(intent.key, run=intent.run, reconcile=intent.reconcile, request=intent.request)

    def _intents(self, committed: Committed) -> list[Intent]:
        """The one effect of an operation, by the kind of its recipient."""
        kind = kind_of(committed.op_id)
        key = committed.effect_key(ACTION)
        # The recipient knows the effect by the same key, as text.
        name = msgspec.json.encode(key).decode()
        request = Request(key=name, operation=committed.op_id, event=committed.operation.event)

        def run() -> str:
            # The intent of this attempt is on record before `run` is called.
            record = self._journal.record(key)
            assert record is not None
            return self._client.perform(kind, msgspec.structs.replace(request, attempt=record.attempts))

        def find(_signal: Signal) -> str | None:
            return self._client.find(name)

        def prove(signal: Signal) -> str:
            return self._client.cancel(name, signal.attempt)

        reconcile = {Kind.DEDUPLICATES: None, Kind.ASKABLE: find, Kind.PROVABLE: prove}[kind]
        return [Intent(key, run, reconcile, request=request)]


def operation_of(key: Key) -> str:
    """The op_id of the operation whose `effect_key` this is."""
    return str(key[2])


def main(directory: str, port: str, seed: str) -> None:
    """Live until the input ends."""
    feed.say(feed.Started())
    client = Client(int(port), Latency(int(seed)))
    with journal.open(Path(directory) / "journal", operation=Delivery) as j:
        service = Service(j, client)
        service.recover()
        service.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
