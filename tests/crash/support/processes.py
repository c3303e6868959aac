"""Real processes for the crash tests, cheap enough to start a thousand of them.

A server (`server.py`) that has imported the journal and opened nothing forks a child for each request: a fresh
process in all that the journal can see, for two milliseconds instead of two hundred. A request carries a socket over
which the child speaks with whoever asked for it, so a child can ask for processes of its own: from inside a `run`, a
second process looks at the file. Knows nothing of the journal.
"""

import contextlib
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 60.0  # a child that says nothing for so long hangs; no test waits for a moment, all wait for a message
REQUEST_BYTES_MAX = 1 << 16
KILLED = -signal.SIGKILL


class ChildError(AssertionError):
    """A child raised, or ended otherwise than the test expects; carries the child's traceback."""


class Process(Generic[T]):
    """A started child: its pid, what it says, its exit code and its value."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._value: list[T] = []
        self._raised = ""
        self._said: list[object] = []
        self.exit_code: int | None = None
        self.pid = 0
        while self.pid == 0:
            self._take()

    def say(self, message: object) -> None:
        """Sends the child a message; it waits for it with `hear_parent`."""
        self._channel.send(message)

    def hear(self) -> object:
        """Waits for the child's next message; raises `ChildError` where it ends without one."""
        while not self._said:
            if self.exit_code is not None:
                raise ChildError(self._raised or f"process {self.pid} ended with {self.exit_code} and no message")
            self._take()
        return self._said.pop(0)

    def is_over_within(self, seconds: float) -> bool:
        """Whether the child ends by itself within so many seconds, which pass only while it says nothing."""
        while self.exit_code is None and self._channel.poll(seconds):
            self._take()
        return self.exit_code is not None

    def kill(self) -> int:
        """Kills the child where it stands and gives its exit code, `KILLED` unless it was quicker."""
        if not self.is_over_within(0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends the child a signal."""
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Lets the child stand still, wherever it is, and returns when it does."""
        self.send(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Returns when the child stands still; it went on to do that after it had said so."""
        deadline = time.monotonic() + PATIENCE_S
        while _state(self.pid) != "T":
            assert time.monotonic() < deadline, f"process {self.pid} does not stand still"
            os.sched_yield()

    def go_on(self) -> None:
        """Lets a child that stands still go on."""
        self.send(signal.SIGCONT)

    def wait(self) -> int:
        """Waits for the end and gives the exit code: 0, or a signal's number below 0."""
        while self.exit_code is None:
            self._take()
        return self.exit_code

    def value(self) -> T:
        """Waits for the end and gives what the target returned; raises `ChildError` where it did not return."""
        self.wait()
        if not self._value:
            raise ChildError(self._raised or f"process {self.pid} ended with {self.exit_code} and no value")
        return self._value[0]

    def close(self) -> None:
        self._channel.close()

    def _take(self) -> None:
        """Waits for one message and puts it where it belongs."""
        if not self._channel.poll(PATIENCE_S):
            raise ChildError(f"a process was silent for {PATIENCE_S} s")
        try:
            kind, content = self._channel.recv()
        except EOFError as error:
            raise ChildError("the server of processes is gone; its standard error says why") from error
        match kind:
            case "pid":
                self.pid = content
            case "said":
                self._said.append(content)
            case "value":
                self._value.append(content)
            case "raised":
                self._raised = content
            case "exit":
                self.exit_code = content


def _state(pid: int) -> str:
    """The state of a process as the kernel shows it, `T` of one that stands still."""
    line = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return line.rpartition(")")[2].split()[0]


class Processes:
    """Starts children; the tests' own end of the server, and each child's."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._started: list[Process[Any]] = []

    def start(self, target: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Process[T]:
        """A new process that calls `target`, a function of a module, with arguments that pickle."""
        request = pickle.dumps((target, args, kwargs))
        assert len(request) <= REQUEST_BYTES_MAX
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [request], [theirs.fileno()])
        process: Process[T] = Process(Connection(ours.detach()))
        self._started.append(process)
        return process

    def run(self, target: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `target` in a new process and gives what it returned; raises `ChildError` where it did not."""
        process = self.start(target, *args, **kwargs)
        try:
            return process.value()
        finally:
            self.forget(process)

    def forget(self, process: Process[Any]) -> None:
        process.close()
        self._started.remove(process)

    def end(self) -> None:
        """Kills what still runs; a failed test leaves nobody behind."""
        while self._started:
            process = self._started.pop()
            process.kill()
            process.close()


class Server:
    """Owns the server's process; a context manager that gives the tests' end."""

    def __enter__(self) -> Processes:
        package = __package__ or ""
        self._asking, serving = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                f"{package}.server",
                str(serving.fileno()),
                str(self._asking.fileno()),
            ],
            stdin=subprocess.PIPE,  # its end tells the server that the tests are gone
            pass_fds=[serving.fileno(), self._asking.fileno()],
        )
        serving.close()
        self._processes = Processes(self._asking)
        return self._processes

    def __exit__(self, *_: object) -> None:
        self._processes.end()
        self._process.communicate()
        self._asking.close()


class Child:
    """What a child has of the world of processes: its channel and the means to ask for more; set by the server."""

    channel: Connection
    processes: Processes


def say_parent(message: object) -> None:
    """In a child: a message for the `hear` of whoever started it."""
    Child.channel.send(("said", message))


def hear_parent() -> object:
    """In a child: waits for the next message that `say` sent."""
    return Child.channel.recv()


def die() -> None:
    """Ends this process without unwinding: no `finally`, no `atexit`, no flush, no close."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")
