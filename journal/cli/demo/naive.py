"""The same service without a journal, in two ways that look right.

`python -m journal.cli.demo.naive WHEN DIRECTORY PORT SEED` keeps a durable list of the deliveries that it has done.
Noted `after` the effect, a kill between the two performs it twice where the recipient does not deduplicate; noted
`before` it, the same kill loses it. It sends the same requests, with the same keys, as the service with a journal.
"""

import os
import sys
from pathlib import Path

import msgspec

from journal.cli.demo import feed
from journal.cli.demo.client import Client
from journal.cli.demo.deliveries import Delivery
from journal.cli.demo.kinds import kind_of
from journal.cli.demo.latency import Latency
from journal.cli.demo.messages import Request


class DoneList:
    """The identities of what is done, one a line, durable when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab+")
        self._file.seek(0)
        self._done = {msgspec.json.decode(line, type=str) for line in self._file}

    def __contains__(self, op_id: str) -> bool:
        return op_id in self._done

    def note(self, op_id: str) -> None:
        """Add an identity."""
        self._file.write(msgspec.json.encode(op_id) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._done.add(op_id)


def main(when: str, directory: str, port: str, seed: str) -> None:
    """Live until the input ends."""
    feed.say(feed.Started())
    client = Client(int(port), Latency(int(seed)))
    done = DoneList(Path(directory) / "done.jsonl")
    serve = {"after": _serve_noting_after, "before": _serve_noting_before}[when]
    for delivery in feed.receive():
        if delivery.delivery in done:
            feed.say(feed.Acknowledged(repeated=True))
        else:
            serve(delivery, client, done)


def _serve_noting_after(delivery: Delivery, client: Client, done: DoneList) -> None:
    """At least once: acknowledged when everything is done, so that the sender sends again what was cut off."""
    _perform(client, delivery)
    done.note(delivery.delivery)
    feed.say(feed.Acknowledged(repeated=False))


def _serve_noting_before(delivery: Delivery, client: Client, done: DoneList) -> None:
    """At most once: whatever was begun is never begun again."""
    done.note(delivery.delivery)
    feed.say(feed.Acknowledged(repeated=False))
    _perform(client, delivery)


def _perform(client: Client, delivery: Delivery) -> None:
    request = Request(key=delivery.delivery, operation=delivery.delivery, event=delivery.event)
    client.perform(kind_of(delivery.delivery), request)


if __name__ == "__main__":
    main(*sys.argv[1:])
