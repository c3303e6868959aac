"""What a fresh process finds in a world, and what must hold in it whatever died before.

`recover` is what a service does at start-up; `State` is everything that the public API shows afterwards, so that two
states can be compared as values.
"""

from collections import Counter

import msgspec

import journal
from journal import Committed
from tests.crash.support.service import Service, World, key_of, text_of

CURSOR = "service"
GROUP = "group "
GROUP_SIZE = 3


class Sent(msgspec.Struct, frozen=True):
    """A recipient's own count for one key."""

    requests: int
    deliveries: int
    message: str | None


class Walk(msgspec.Struct, frozen=True):
    """What a recovery answered."""

    cursor: int
    stopped: str | None
    ran: int
    reused: int
    reconciled: int
    uncertain: int
    passed: int


class State(msgspec.Struct, frozen=True):
    """Everything that can be read of a world; keys are given as recipients take them."""

    head: int
    operations: list[Committed]
    records: dict[str, journal.EffectRecord]
    histories: dict[str, list[journal.EffectEvent]]
    unfinished: list[str]
    steps: int
    cursor: int
    sent: dict[str, Sent]
    findings: list[str]
    pruned: list[str]


def recover(world: World, *, is_watched: bool = True, goes_on: bool = False) -> tuple[Walk, State]:
    """Start-up: settle everything, from the beginning or on from the saved cursor.

    Gives what `recover` answered and what is there then.
    """
    service = Service(world, is_watched=is_watched)
    with world.open() as j:
        settled = j.recover(j.cursor(CURSOR) if goes_on else 0, intents=service.intents)
        stop = settled.stopped
        walk = Walk(
            cursor=int(settled),
            stopped=f"{stop.reason}: {stop.error!r}" if stop else None,
            ran=settled.ran,
            reused=settled.reused,
            reconciled=settled.reconciled,
            uncertain=settled.uncertain,
            passed=settled.passed,
        )
        return walk, take_state(j, world)


def take_state(j: journal.Journal, world: World) -> State:
    operations = list(j.read())
    records = {record.key: record for record in j.effects()}
    known = {*records, *(key_of(committed) for committed in operations)}
    histories: dict[str, list[journal.EffectEvent]] = {}
    pruned: list[str] = []
    for key in sorted(known, key=text_of):
        try:
            events = j.history(key)
        except journal.EffectPrunedError:
            pruned.append(text_of(key))
        else:
            histories |= {text_of(key): events} if events else {}
    sent = {
        key: Sent(recipient.requests(key), recipient.deliveries(key), recipient.find(key))
        for recipient in world.recipients()
        for key in recipient.known_keys()
    }
    return State(
        head=int(j.head()),
        operations=operations,
        records={text_of(key): record for key, record in records.items()},
        histories=histories,
        unfinished=[text_of(record.key) for record in j.unfinished()],
        steps=j.stats().steps,
        cursor=int(j.cursor(CURSOR)),
        sent=sent,
        findings=[repr(finding) for finding in j.verify()],
        pruned=pruned,
    )


def check_all(world: World, walk: Walk, state: State) -> None:
    """Everything that must hold after a recovery, whatever died before it."""
    check_recovered(walk, state)
    check_log(state)
    check_effects(world, state)
    check_acknowledged(world, state)


def check_log(state: State) -> None:
    """Positions and sequences have no gap, a group is whole, and the derived tables say what the log says."""
    assert state.findings == []
    events = [event for history in state.histories.values() for event in history]
    positions = sorted([committed.position for committed in state.operations] + [event.position for event in events])
    assert len(positions) == len(set(positions))
    assert set(positions) <= set(range(1, state.head + 1))
    others = state.head - len(positions) - state.steps
    # Of a pruned effect no public method tells the positions; it had an intent and an outcome at least.
    is_told = others >= 2 * len(state.pruned) if state.pruned else others == 0
    has_forgotten = any(events[0].phase == "cleared" for events in state.histories.values())
    assert is_told or (has_forgotten and others > 0), f"of {state.head} records, {state.steps} steps: {positions}"
    sequences: dict[str, list[int]] = {}
    for committed in state.operations:
        sequences.setdefault(committed.stream, []).append(committed.sequence)
    assert all(found == list(range(1, len(found) + 1)) for found in sequences.values()), sequences
    groups = Counter(
        committed.op_id.rpartition(" ")[0] for committed in state.operations if committed.op_id.startswith(GROUP)
    )
    assert set(groups.values()) <= {GROUP_SIZE}, "one append_all is there whole or not at all"
    for key, record in state.records.items():
        events = state.histories[key]
        intents = [event for event in since_cleared(events) if event.phase == "intent"]
        assert record.position == events[-1].position
        assert record.attempts == len(intents)
        assert [event.attempt for event in intents] == list(range(1, len(intents) + 1))
    unfinished = {key for key, record in state.records.items() if record.phase in {"intent", "failed"}}
    assert set(state.unfinished) == unfinished


def since_cleared(events: list[journal.EffectEvent]) -> list[journal.EffectEvent]:
    """The events of a key's present life: `clear_effect` begins another one."""
    cleared = [index for index, event in enumerate(events) if event.phase == "cleared"]
    return events[cleared[-1] + 1 :] if cleared else events


def check_effects(world: World, state: State) -> None:
    """Nothing was done twice or lost in silence, and no recipient was reached without a durable intent.

    By the recipients' own counts. An effect may be `uncertain` only where its recipient was never reached; what a
    person decided is not held against anybody.
    """
    assert world.faults() == []
    assert [
        sighting for sighting in world.sightings() if (sighting.phase, sighting.last_event) != ("intent", "intent")
    ] == []
    for key, sent in state.sent.items():
        assert sent.deliveries <= 1, f"{key} was delivered {sent.deliveries} times"
        if key in state.pruned:
            assert sent.deliveries == 1, f"{key} was pruned, and never delivered"
            continue
        if state.histories[key][0].phase == "cleared":
            continue  # the requests of before went with the events
        intents = sum(event.phase == "intent" for event in state.histories[key])
        assert sent.requests <= intents, f"{key}: {sent.requests} requests for {intents} intents"
    for key, record in state.records.items():
        if record.via == "resolve":
            continue
        sent = state.sent.get(key, Sent(0, 0, None))
        match record.phase:
            case "accepted":
                assert (sent.deliveries, sent.message) == (1, record.proof), key
            case "uncertain":
                assert sent.deliveries == 0, key
            case phase:
                raise AssertionError(f"{key} is left in phase {phase} by a recovery")


def check_acknowledged(world: World, state: State) -> None:
    """What was acknowledged is there, as it was acknowledged."""
    operations = {committed.op_id: committed for committed in state.operations}
    for acknowledged in world.acknowledged("append"):
        found = operations[acknowledged.name]
        assert [found.position, found.sequence] == acknowledged.value
    for acknowledged in world.acknowledged("settle"):
        if acknowledged.name in state.pruned:
            assert acknowledged.value is not None, "what is uncertain is never pruned"
            continue
        record = state.records[acknowledged.name]
        assert (record.phase, record.proof) == (
            ("accepted", acknowledged.value) if acknowledged.value is not None else ("uncertain", None)
        )
    for acknowledged in world.acknowledged("event"):
        assert acknowledged.value in [[event.phase, event.via] for event in state.histories[acknowledged.name]]
    for acknowledged in world.acknowledged("cursor"):
        assert state.cursor >= acknowledged.value
    values: dict[str, object] = {}
    for acknowledged in world.acknowledged("step"):
        assert acknowledged.value == values.setdefault(acknowledged.name, acknowledged.value)
    assert state.steps >= len(values)


def check_recovered(walk: Walk, state: State) -> None:
    """The walk went through everything."""
    last = state.operations[-1].position if state.operations else 0
    assert (walk.cursor, walk.stopped) == (last, None)


def count(walk: Walk) -> Counter[str]:
    """The walk's counts of effects, without those that are 0."""
    counts = Counter(
        ran=walk.ran, reused=walk.reused, reconciled=walk.reconciled, uncertain=walk.uncertain, passed=walk.passed
    )
    return +counts
