"""The process that forks the children: single-threaded, the journal imported, nothing opened.

Each request is forked twice: a guard that waits for the child and tells its exit code over the child's own channel
after its death, and the child. So the server waits for nobody, and a child may ask it for another one.
"""

import contextlib
import gc
import logging
import os
import pickle
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import structlog  # noqa: F401 - what the journal imports when it first says something

import journal  # noqa: F401 - imported once, here, and not by each child

from .processes import REQUEST_BYTES_MAX, Child, Processes


def serve(serving: socket.socket, asking: socket.socket) -> None:
    """Forks for each request until standard input ends."""
    logging.getLogger("journal").addHandler(logging.NullHandler())  # what goes wrong here goes wrong on purpose
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' own affair
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need nobody who waits for them
    gc.freeze()  # a collection in a child would copy every page that the children share
    while True:
        ready = wait([sys.stdin.fileno(), serving])
        if serving not in ready:
            return
        request, descriptors, _, _ = socket.recv_fds(serving, REQUEST_BYTES_MAX, 1)
        target, args, kwargs = pickle.loads(request)  # imports the target's module for all later children
        with Connection(descriptors[0]) as channel:
            if os.fork() == 0:
                serving.close()
                guard(channel, asking, target, args, kwargs)


def guard(channel: Connection, asking: socket.socket, target: Any, args: Any, kwargs: Any) -> NoReturn:
    """Forks the child, waits for its end and tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        live(channel, asking, target, args, kwargs)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # whoever asked is gone
        channel.send(("exit", status))
    os._exit(0)


def live(channel: Connection, asking: socket.socket, target: Any, args: Any, kwargs: Any) -> NoReturn:
    """The child: tells its pid, calls the target, tells what came of it."""
    Child.channel = channel
    Child.processes = Processes(asking)
    channel.send(("pid", os.getpid()))
    try:
        channel.send(("value", target(*args, **kwargs)))
    except BaseException:
        channel.send(("raised", traceback.format_exc()))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_end, socket.socket(fileno=int(sys.argv[2])) as childrens_end:
        serve(its_end, childrens_end)
