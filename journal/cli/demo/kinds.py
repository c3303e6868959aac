"""Three kinds of recipients, and what the journal promises for each."""

import enum
import zlib


class Kind(enum.StrEnum):
    """What a recipient can do about an effect that may already have happened.

    Nothing is ever doubled or lost at any of them. Only an askable recipient leaves effects uncertain: it does not
    deduplicate, so they must not be sent again, and "I have no record" does not prove that a request is not still
    on its way to it.
    """

    DEDUPLICATES = "deduplicates"
    """Honours the idempotency key: sending again is harmless (`run_effect`)."""

    ASKABLE = "askable"
    """Performs whatever arrives, and can be asked by key what it has (`effect`, whose reconcile may give None)."""

    PROVABLE = "provable"
    """Performs whatever arrives, and can cancel an attempt for good (`effect`, whose reconcile may raise
    NotPerformed)."""


MAY_BE_UNCERTAIN = frozenset({Kind.ASKABLE})


def kind_of(op_id: str) -> Kind:
    """The kind of recipient that an operation's effect goes to: the same in every run."""
    kinds = tuple(Kind)
    return kinds[zlib.crc32(op_id.encode()) % len(kinds)]
