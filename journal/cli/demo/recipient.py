"""The other system: an HTTP server in a process of its own, with a durable store of its own.

`python -m journal.cli.demo.recipient STORE SEED` prints the port that it listens on, and serves until its standard
input ends: closed by who started it, or by that one's death. A request that is under way then is still decided.
"""

import http.server
import sys
import threading
import urllib.parse
from http import HTTPStatus
from pathlib import Path

import msgspec

from journal.cli.demo.kinds import Kind
from journal.cli.demo.latency import Latency
from journal.cli.demo.messages import Cancel, Named, Request
from journal.cli.demo.store import Answer, Store

_FIND_PATH = f"/{Kind.ASKABLE}/"
_CANCEL_PATH = f"/{Kind.PROVABLE}/cancel"
_PERFORM_PATHS = {f"/{kind}": kind for kind in Kind}


class Recipient(http.server.ThreadingHTTPServer):
    """Serves one store on a free port of this machine."""

    # A request of a service that has died meanwhile must be decided before the store is counted.
    daemon_threads = False

    def __init__(self, store: Store, latency: Latency) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.latency = latency


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Recipient

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            if self.path == _CANCEL_PATH:
                self._cancel(msgspec.json.decode(body, type=Cancel))
            elif self.path in _PERFORM_PATHS:
                self._perform(_PERFORM_PATHS[self.path], msgspec.json.decode(body, type=Request))
            else:
                self._answer(HTTPStatus.NOT_FOUND, None)
        except msgspec.MsgspecError:
            # Cut off in the middle of the body: the service was killed while it sent. Nothing was asked for.
            self._answer(HTTPStatus.BAD_REQUEST, None)

    def do_GET(self) -> None:
        if not self.path.startswith(_FIND_PATH):
            self._answer(HTTPStatus.NOT_FOUND, None)
            return
        key = urllib.parse.unquote(self.path.removeprefix(_FIND_PATH))
        found = self.server.store.find(key)
        self.server.latency.wait("after", key, 0)
        self._answer(HTTPStatus.OK, _name(Kind.ASKABLE, found))

    def _perform(self, kind: Kind, request: Request) -> None:
        self.server.latency.wait("before", request.key, request.attempt)
        arrival = self.server.store.receive(kind, key=request.key, operation=request.operation, attempt=request.attempt)
        self.server.latency.wait("after", request.key, request.attempt)
        if arrival.answer is Answer.CANCELLED:
            self._answer(HTTPStatus.CONFLICT, None)
        else:
            self._answer(HTTPStatus.OK, _name(kind, arrival.id))

    def _cancel(self, cancel: Cancel) -> None:
        found = self.server.store.cancel(cancel.key, cancel.attempt)
        self.server.latency.wait("after", cancel.key, 0)
        self._answer(HTTPStatus.OK, _name(Kind.PROVABLE, found))

    def _answer(self, status: HTTPStatus, name: str | None) -> None:
        body = msgspec.json.encode(Named(name))
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            # The service died before it could read the answer: the moment that the demo is about.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class
        """Print nothing for a request."""


def _name(kind: Kind, arrival_id: int | None) -> str | None:
    return None if arrival_id is None else f"{kind}-{arrival_id}"


def main(store_path: str, seed: str) -> None:
    """Serve until standard input ends."""
    with Store(Path(store_path)) as store, Recipient(store, Latency(int(seed))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        print(server.server_port, flush=True)
        sys.stdin.buffer.read()
        server.shutdown()
        serving.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
