"""The demo's service with a client that performs each effect `twice` or `never`, so that the demo must fail.

`python -m tests.cli.sabotaged_service HOW DIRECTORY PORT SEED`.
"""

import sys

from journal.cli.demo import service
from journal.cli.demo.client import Client
from journal.cli.demo.kinds import Kind
from journal.cli.demo.messages import Request


class Twice(Client):
    def perform(self, kind: Kind, request: Request) -> str:
        super().perform(kind, request)
        return super().perform(kind, request)


class Never(Client):
    def perform(self, kind: Kind, request: Request) -> str:
        return f"{kind}-0"


if __name__ == "__main__":
    how, *arguments = sys.argv[1:]
    vars(service)["Client"] = {"twice": Twice, "never": Never}[how]
    service.main(*arguments)
