"""What service and recipient send each other, as JSON over HTTP.

    POST /{kind}           Request   200 Named, or 409: this attempt was cancelled before it arrived
    GET  /askable/{key}              200 Named, with no name where the recipient has no record
    POST /provable/cancel  Cancel    200 Named, with no name where the attempt is refused from now on

Whatever a request asks for is durable before it is answered.
"""

import msgspec


class Request(msgspec.Struct, frozen=True):
    """Asks to perform an effect: `key` is the idempotency key, `attempt` counts the requests made for it."""

    key: str
    operation: str
    event: str
    attempt: int = 1


class Cancel(msgspec.Struct, frozen=True):
    """Asks that an attempt not be performed any more, unless it was."""

    key: str
    attempt: int


class Named(msgspec.Struct, frozen=True):
    """What the recipient named the effect: the proof that it was performed."""

    name: str | None
