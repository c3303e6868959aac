"""What the tests of servers share: the recipient that outlives every server, and servers as real processes.

A server is given a socket on which the test listens already, so its port is free and stays so over a restart: who
connects while nobody serves waits in the socket's queue.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from tests.crash.support.lines import read_lines

PATIENCE = 60.0
"""Seconds after which a wait that must end is a failure. Nothing passes or fails by being faster than this."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls a condition that must become true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


class Recipient:
    """The system at the other end: does each thing that it is sent, deduplicates nothing, and answers when it may.

    `POST /deliveries/NAME` delivers, `GET /deliveries/NAME` gives what was delivered; `GET /gates/NAME` only waits.
    A name that is held is not answered before it is released; what it asks for is done at once.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._delivered: list[tuple[str, str]] = []
        self._visited: list[str] = []
        self._held: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=False)
        self._server.request_queue_size = 128
        self._server.server_bind()
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def hold(self, *names: str) -> None:
        """Keeps the answers of these names back."""
        with self._changed:
            self._held.update(names)

    def release(self) -> None:
        """Lets all answers go."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def wait_until_delivered(self, *names: str) -> None:
        """Returns when each of these names was delivered, answered or not."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(self.deliveries(name) for name in names), PATIENCE), names

    def wait_until_visited(self, gate: str, times: int = 1) -> None:
        """Returns when so many stand or stood at a gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._visited.count(gate) >= times, PATIENCE), gate

    def deliveries(self, name: str) -> list[str]:
        """The id of each delivery of a name, in order."""
        return [delivery for delivered, delivery in self._delivered if delivered == name]

    def close(self) -> None:
        """Serves no more."""
        self.release()
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()

    def deliver(self, name: str) -> Any:
        """Delivers, and answers when it may."""
        with self._changed:
            delivery = f"delivery-{len(self._delivered) + 1}"
            self._delivered.append((name, delivery))
            self._wait_while_held(name)
        return {"id": delivery}

    def visit(self, gate: str) -> Any:
        """Passes a gate when it is open."""
        with self._changed:
            self._visited.append(gate)
            self._wait_while_held(gate)
        return {}

    def _wait_while_held(self, name: str) -> None:
        self._changed.notify_all()
        self._changed.wait_for(lambda: name not in self._held)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recipient = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, kind, name = unquote(self.path).split("/", 2)
                self.answer({"ids": recipient.deliveries(name)} if kind == "deliveries" else recipient.visit(name))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.answer(recipient.deliver(unquote(self.path).split("/", 2)[2]))

            def answer(self, value: Any) -> None:
                body = json.dumps(value).encode()
                # Who asked may have been killed meanwhile.
                with contextlib.suppress(ConnectionError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def environment_of(directory: Path, recipient: Recipient) -> dict[str, str]:
    """How a process of a service finds its journal, its recipient and the file of its notes."""
    return {
        **os.environ,
        "PAYMENTS_JOURNAL": str(directory / "journal"),
        "PAYMENTS_NOTES": str(directory / "notes.jsonl"),
        "PAYMENTS_RECIPIENT": recipient.url,
    }


def end_session(pid: int) -> None:
    """Kills a process that leads a session of its own, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Served:
    """A server as a process of its own, with the files that it and its workers write."""

    def __init__(self, directory: Path, recipient: Recipient) -> None:
        self.journal = directory / "journal"
        self._notes = directory / "notes.jsonl"
        self._log = directory / "server.log"
        self._directory = directory
        self._recipient = recipient
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def pid(self) -> int:
        """The process that was started: a worker, or the one above the workers."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process that was started is still there."""
        return self._process is not None and self._process.poll() is None

    def start(self, *command: str, **environment: str) -> None:
        """Starts it, `{fd}` in the command being its socket, and returns when it answers `GET /health`."""
        descriptor = self._socket.fileno()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [word.format(fd=descriptor) for word in command],
                cwd=self._directory,
                env={**environment_of(self._directory, self._recipient), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[descriptor],
                start_new_session=True,  # its workers are ended with it, whatever state it is in
            )
        with self.client() as client:
            while True:
                assert self.is_running, self.log()
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health", timeout=0.2).is_success:
                        return

    def client(self) -> httpx.Client:
        """A client with connections of its own, which are closed with it."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def notes(self, word: str) -> list[dict[str, Any]]:
        """What its processes noted under a word, in order."""
        return [note for note in read_lines(self._notes) if note["word"] == word]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process that was started."""
        os.kill(self.pid, number)

    def wait_until_over(self) -> int:
        """Returns when the process is gone, with how it ended."""
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Ends the process without unwinding, and its workers with it."""
        end_session(self.pid)
        self.wait_until_over()

    def stop(self) -> int:
        """Ends it in order, and gives how it ended."""
        self.send(signal.SIGTERM)
        return self.wait_until_over()

    def log(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Leaves nothing of it behind."""
        if self._process is not None:
            self.kill()
        self._socket.close()
