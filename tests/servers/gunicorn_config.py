"""gunicorn's configuration: preload, the hooks that open and close, and what the master does with a handle of its own.

gunicorn reads this file, and in it what has the name of a setting or of a hook.
"""

import os
from typing import Any

from tests.servers import payments

preload_app = True
wsgi_app = "tests.servers.wsgi:application"
# A worker that waits for the recipient is not stuck.
timeout = 0
control_socket_disable = True


def post_fork(server: Any, worker: Any) -> None:
    """In the worker, after the fork: the right place to open."""
    from tests.servers import wsgi

    if wsgi.OPENED == "in post_fork":
        payments.note_recovery(wsgi.handle().recover(intents=payments.intents))
    payments.note("forked")


def worker_exit(server: Any, worker: Any) -> None:
    """In the worker, at its end."""
    from tests.servers import wsgi

    if wsgi.OPENED != "at import":
        wsgi.handle().close()
        payments.note("closed")


def pre_fork(server: Any, worker: Any) -> None:
    """In the master, before each fork; it has a handle only where the import opened one."""
    _append_in_master()


def on_exit(server: Any) -> None:
    """In the master, at its end."""
    _append_in_master()


def _append_in_master() -> None:
    from tests.servers import wsgi

    if wsgi.OPENED == "at import":
        j = wsgi.handle()
        count = sum(1 for _ in j.read("master"))
        committed = j.append("master", payments.Payment("fork", count), op_id=str(count))
        payments.note("appended", pid_of_master=os.getpid(), sequence=committed.sequence)
