"""`recovery/intents.py`: what an operation implies, and what a walk came to."""

import copy
import pickle

import msgspec
import pytest

from recovery import Intent, Settled, Stop
from tests.unit.support import unused

STOP = Stop(4, "orders", "order-7", ("mail", 7), "failed", ValueError("no"))


def test_intent_defaults_are_those_of_a_call() -> None:
    """An intent with a key and a run is a `run_effect` with nothing said."""
    intent = Intent("k", unused)

    assert (intent.reconcile, intent.request, intent.returns, intent.reconcile_timeout) == (None, None, None, 30.0)


@pytest.mark.parametrize("value", [Intent("k", unused), Stop(1, "s", "1", "k", "skipped")])
def test_values_are_frozen(value: Intent | Stop) -> None:
    """What the walk hands out cannot be changed under somebody else."""
    with pytest.raises(AttributeError):
        value.key = "other"  # type: ignore[misc]  # that it is refused is the property


def test_stop_says_nothing_more_than_it_knows() -> None:
    """A policy that skipped an effect stopped no call, so there is no error."""
    assert Stop(1, "s", "1", "k", "skipped").error is None


def test_settled_is_the_cursor() -> None:
    """It can be compared, added to, stored and encoded as the `int` that it is."""
    settled = Settled(7, ran=2)

    assert settled == 7
    assert settled + 1 == 8
    assert hash(settled) == hash(7)
    assert str(settled) == "7"
    assert f"{settled}" == "7"
    assert msgspec.json.encode({"cursor": int(settled)}) == b'{"cursor":7}'


def test_settled_counts_nothing_by_default() -> None:
    """A walk over nothing did nothing and was not stopped."""
    settled = Settled(0)

    counts = (settled.ran, settled.reused, settled.reconciled, settled.uncertain, settled.passed)
    assert counts == (0, 0, 0, 0, 0)
    assert settled.stopped is None


def test_settled_says_everything_in_its_repr() -> None:
    """A log line or a failed assertion shows what the walk did, not a bare number."""
    settled = Settled(7, STOP, ran=1, reused=2, reconciled=3, uncertain=4, passed=5)

    assert repr(settled) == (
        "Settled(7, stopped=Stop(position=4, stream='orders', op_id='order-7', key=('mail', 7), reason='failed', "
        "error=ValueError('no')), ran=1, reused=2, reconciled=3, uncertain=4, passed=5)"
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_settled_survives_a_copy(copied: object) -> None:
    """A copied or pickled `Settled` says as much as the first: the cursor, the stop and every count."""
    assert callable(copied)
    settled = Settled(7, Stop(4, "s", "1", "k", "skipped"), ran=1, reused=2, reconciled=3, uncertain=4, passed=5)

    twin = copied(settled)

    assert type(twin) is Settled
    assert twin == settled
    assert twin.stopped == settled.stopped
    assert repr(twin) == repr(settled)


@pytest.mark.parametrize("name", ["ran", "stopped", "other"])
def test_settled_is_frozen(name: str) -> None:
    """Nobody changes what a walk said, nor adds to it."""
    settled = Settled(7, ran=2)

    with pytest.raises(AttributeError, match=f"Settled is frozen: '{name}' cannot be set"):
        setattr(settled, name, 1)

    assert repr(settled) == repr(Settled(7, ran=2))
