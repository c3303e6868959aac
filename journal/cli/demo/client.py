"""How a service talks to the recipient."""

import http.client
import urllib.parse
from http import HTTPStatus

import msgspec

from journal import NotPerformed
from journal.cli.demo.kinds import Kind
from journal.cli.demo.latency import Latency
from journal.cli.demo.messages import Cancel, Named, Request

REQUEST_SECONDS_MAX = 30.0


class RecipientError(Exception):
    """The recipient answered something that is no answer; what happened there is unknown."""


class Client:
    """Requests to the recipient at `port`, each over a connection of its own."""

    def __init__(self, port: int, latency: Latency) -> None:
        self._port = port
        self._latency = latency

    def perform(self, kind: Kind, request: Request) -> str:
        """Have an effect performed; gives what the recipient named it.

        Raises:
            NotPerformed: the connection was refused, or this attempt was cancelled before it arrived.
            RecipientError, OSError, http.client.HTTPException: nobody here knows whether it was performed.
        """
        self._latency.wait("connect", request.key, request.attempt)
        name = self._call("POST", f"/{kind}", msgspec.json.encode(request))
        if name is None:
            raise RecipientError("performed, but not named")
        return name

    def find(self, key: str) -> str | None:
        """What an askable recipient named the effect, or None where it has no record of it."""
        return self._call("GET", f"/{Kind.ASKABLE}/{urllib.parse.quote(key, safe='')}")

    def cancel(self, key: str, attempt: int) -> str:
        """What a provable recipient named the effect.

        Raises:
            NotPerformed: it was not performed, and the recipient will refuse this attempt if it still arrives.
        """
        name = self._call("POST", f"/{Kind.PROVABLE}/cancel", msgspec.json.encode(Cancel(key, attempt)))
        if name is None:
            raise NotPerformed(f"attempt {attempt} is cancelled")
        return name

    def _call(self, method: str, path: str, body: bytes | None = None) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_SECONDS_MAX)
        try:
            try:
                connection.connect()
            except ConnectionRefusedError as error:
                raise NotPerformed(str(error)) from error
            connection.request(method, path, body)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status == HTTPStatus.CONFLICT:
            raise NotPerformed("this attempt was cancelled")
        if response.status != HTTPStatus.OK:
            raise RecipientError(f"{method} {path}: {response.status} {response.reason}")
        return msgspec.json.decode(content, type=Named).name
