"""The processes that the demo starts, and their end."""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

LINE_SECONDS_MAX = 120.0
"""How long a child may say nothing: longer than any of its own time limits."""

END_SECONDS_MAX = 60.0
"""How long a child may take to end by itself: a recipient decides what is under way first."""

LOG_BYTES_SHOWN = 4_000


class ChildError(Exception):
    """A process of the demo ended or fell silent without being told to; the message has what it printed."""


class Child:
    """One process: lines in, lines out, and whatever it prints on standard error kept in a file."""

    def __init__(self, module: str, *arguments: str | Path, log: Path) -> None:
        self._name = module.rpartition(".")[2]
        self._log = log
        self._unread = b""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # It imports what this process imports: `-P` and this keep a `journal.py` of the folder that the
                # command is called in from being taken for the library.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                # Ctrl-C is for the supervisor, which ends its children itself.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout

    def send(self, line: bytes) -> None:
        """Write one line to its standard input; one that has ended does not read it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + b"\n")
            self._stdin.flush()

    def receive(self, kill_at: float | None = None) -> bytes | None:
        """The next line that it prints, or None when it has ended; killed at `kill_at` (monotonic seconds).

        Raises:
            ChildError: nothing came for `LINE_SECONDS_MAX`.
        """
        give_up_at = time.monotonic() + LINE_SECONDS_MAX
        while b"\n" not in self._unread:
            now = time.monotonic()
            if kill_at is not None and now >= kill_at:
                self.kill()
                kill_at = None
            if now >= give_up_at:
                raise self.error(f"said nothing for {LINE_SECONDS_MAX:.0f} s")
            wake_at = give_up_at if kill_at is None else min(kill_at, give_up_at)
            if select.select([self._stdout], [], [], wake_at - now)[0]:
                chunk = os.read(self._stdout.fileno(), select.PIPE_BUF)
                if not chunk:
                    # What was begun and not ended was never said.
                    return None
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def finish(self) -> int:
        """Close its standard input and wait for its end; its exit status, negative for a signal.

        Raises:
            ChildError: it did not end within `END_SECONDS_MAX`.
        """
        self._close_stdin()
        try:
            return self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise self.error(f"did not end within {END_SECONDS_MAX:.0f} s") from error
        finally:
            self._stdout.close()

    def kill(self) -> None:
        """End it at once, where it still runs; whoever reads from it learns it as its end."""
        self._process.kill()

    def close(self) -> None:
        """Kill it, wait for its end and let go of its pipes; nobody may be reading from it."""
        self.kill()
        self._process.wait()
        self._close_stdin()
        self._stdout.close()

    def error(self, problem: str) -> ChildError:
        """An error about this process, with the end of what it printed."""
        printed = self._log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace").strip()
        return ChildError(f"the process `{self._name}` {problem}; it printed:\n{printed or '(nothing)'}")

    def _close_stdin(self) -> None:
        # A line that a killed process did not read is still in the buffer.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()


class Children:
    """Starts processes from any thread; when the block is left, however, none of them is left running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for child in self._children:
            child.close()

    def kill(self) -> None:
        """End them all at once and start no more; threads that wait for one of them go on."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()

    def start(self, module: str, *arguments: str | Path, log: Path) -> Child:
        """Run `python -m module` with these arguments; its standard error goes to the end of `log`."""
        with self._lock:
            if self._closed:
                raise ChildError("the demo is ending: nothing is started any more")
            child = Child(module, *arguments, log=log)
            self._children.append(child)
        return child
