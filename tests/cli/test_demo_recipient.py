"""The demo's recipient: three kinds of promises, kept in its own store."""

import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import NotPerformed
from journal.cli.demo import latency
from journal.cli.demo.client import Client, RecipientError
from journal.cli.demo.kinds import Kind
from journal.cli.demo.latency import Latency
from journal.cli.demo.messages import Request
from journal.cli.demo.recipient import Recipient
from journal.cli.demo.store import Answer, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def client(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a recipient that answers without delay."""
    monkeypatch.setattr(latency, "SECONDS_MAX", latency.SECONDS_MIN)
    monkeypatch.setattr(latency, "SLOW_SECONDS_MIN", 0)
    monkeypatch.setattr(latency, "SLOW_SECONDS_MAX", 0)
    with Recipient(store, Latency(1)) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield Client(server.server_port, Latency(1))
        server.shutdown()
        serving.join()


def answers(store: Store) -> list[Answer]:
    return [arrival.answer for arrival in store.arrivals()]


def test_deduplicating_recipient_performs_a_key_once(client: Client, store: Store) -> None:
    """A repeated key gets the first name again."""
    first = client.perform(Kind.DEDUPLICATES, Request("k", "o", "e"))
    again = client.perform(Kind.DEDUPLICATES, Request("k", "o", "e", attempt=2))

    assert first == again == "deduplicates-1"
    assert answers(store) == [Answer.PERFORMED, Answer.REPEATED]


@pytest.mark.parametrize("kind", [Kind.ASKABLE, Kind.PROVABLE])
def test_other_recipients_perform_whatever_arrives(client: Client, store: Store, kind: Kind) -> None:
    """They are the ones at which an effect can be doubled."""
    names = [client.perform(kind, Request("k", "o", "e")) for _ in range(2)]

    assert names == [f"{kind}-1", f"{kind}-2"]
    assert answers(store) == [Answer.PERFORMED, Answer.PERFORMED]


def test_askable_recipient_tells_what_it_has(client: Client) -> None:
    """Nothing before, the name after, for a key of any characters."""
    key = '["webhooks",0,"ä/?# %","notify"]'

    before = client.find(key)
    name = client.perform(Kind.ASKABLE, Request(key, "o", "e"))

    assert before is None
    assert client.find(key) == name


def test_cancelled_attempt_is_refused_when_it_arrives_late(client: Client, store: Store) -> None:
    """Absence is proved because the attempt cannot arrive any more; the next one can."""
    with pytest.raises(NotPerformed):
        client.cancel("k", 1)
    with pytest.raises(NotPerformed):
        client.perform(Kind.PROVABLE, Request("k", "o", "e", attempt=1))
    name = client.perform(Kind.PROVABLE, Request("k", "o", "e", attempt=2))

    assert client.cancel("k", 2) == name
    assert answers(store) == [Answer.CANCELLED, Answer.PERFORMED]


def test_unknown_path_is_no_answer(client: Client) -> None:
    """What the recipient does not know is an error, and no statement about an effect."""
    with pytest.raises(RecipientError, match="404"):
        client._call("GET", "/elsewhere")
    with pytest.raises(RecipientError, match="404"):
        client._call("POST", "/elsewhere", b"{}")


def test_request_cut_off_in_the_middle_asks_for_nothing(client: Client, store: Store) -> None:
    """A service killed while it sends has sent nothing."""
    with pytest.raises(RecipientError, match="400"):
        client._call("POST", f"/{Kind.ASKABLE}", b'{"key": "k", "opera')

    assert store.arrivals() == []


def test_refused_connection_proves_absence() -> None:
    """A port where nobody listens performed nothing."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with pytest.raises(NotPerformed):
        Client(port, Latency(1)).find("k")


def test_store_is_durable_before_it_answers(store: Store, tmp_path: Path) -> None:
    """What was received is there for another reader at once, with full synchronisation."""
    store.receive(Kind.ASKABLE, key="k", operation="o", attempt=1)

    with Store(tmp_path / "store.sqlite") as other:
        assert [arrival.operation for arrival in other.arrivals()] == ["o"]
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_failed_transaction_leaves_nothing(store: Store) -> None:
    """A request that could not be decided is not half there."""
    with pytest.raises(sqlite3.Error):
        store.receive(Kind.ASKABLE, key=None, operation="o", attempt=1)  # type: ignore[arg-type] # on purpose

    assert store.arrivals() == []
    store.receive(Kind.ASKABLE, key="k", operation="o", attempt=1)
    assert answers(store) == [Answer.PERFORMED]


def test_delays_repeat_with_their_seed() -> None:
    """The same place, key and attempt waits as long in every run."""
    drawn = [Latency(7).seconds("before", str(number), 1) for number in range(200)]

    assert drawn == [Latency(7).seconds("before", str(number), 1) for number in range(200)]
    assert min(drawn) >= latency.SECONDS_MIN
    assert max(drawn) >= latency.SLOW_SECONDS_MIN
