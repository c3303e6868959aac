"""The slow and obvious twin: the journal's contract as plain dicts and lists, in one process and without a file.

It is written from the contract and knows nothing of the implementation. What a run or a reconcile does is a script,
a tuple that begins with a word, so that the twin can follow it without calling anything.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Key = str | tuple[str | int, ...]
Script = tuple[Any, ...]
"""For a run or a body: ("returns", value), ("raises",), ("interrupts",), ("absent",), ("unkept",), ("dies",) or
("resolved", outcome), which returns after a person decided. For a reconcile: ("finds", proof), ("nothing",),
("absent",), ("raises",), ("interrupts",), ("unkept",) or ("dies",)."""


class Refused(Exception):
    """What the journal raises, by name, with the facts that it must carry."""

    def __init__(self, name: str, **facts: Any) -> None:
        super().__init__(name, facts)
        self.name, self.facts = name, facts


class Interrupted(BaseException):
    """An exception that is no `Exception` passed through."""


class Died(BaseException):
    """The process that ran the script is gone."""


@dataclass(frozen=True)
class Operation:
    stream: str
    sequence: int
    position: int
    op_id: str
    actor: str
    at: int
    operation: Any
    epoch: int = 1


@dataclass(frozen=True)
class Event:
    position: int
    at: int
    phase: str
    attempt: int
    via: str | None = None
    proof: Any = None
    reason: str | None = None


@dataclass(frozen=True)
class Record:
    key: Key
    guarantee: str
    phase: str
    attempts: int
    first_at: int
    request: str | None
    proof: Any = None
    via: str | None = None
    reason: str | None = None
    was_passed: bool = False
    """Whether it began as a passed one; the contract does not say when such an effect began."""


@dataclass(frozen=True)
class PlannedIntent:
    key: Key
    guarantee: str
    run: Script
    reconcile: Script
    request: Any


@dataclass
class Walk:
    """What `recover` says."""

    cursor: int
    stopped: tuple[int, Key, str] | None = None
    ran: int = 0
    reused: int = 0
    reconciled: int = 0
    uncertain: int = 0
    passed: int = 0
    became_uncertain: int = 0


def order(key: Key) -> Any:
    """Gives what keys are sorted by: strs by code point, then tuples by their parts, ints by value before strs."""
    if isinstance(key, str):
        return (0, [ord(character) for character in key])
    return (1, [(0, part, []) if isinstance(part, int) else (1, 0, [ord(c) for c in part]) for part in key])


def starts_with(key: Key, prefix: Key) -> bool:
    """Whether a prefix matches: the beginning of a str, or whole first parts of a tuple."""
    if isinstance(key, str) or isinstance(prefix, str):
        return isinstance(key, str) and isinstance(prefix, str) and key.startswith(prefix)
    return key[: len(prefix)] == prefix


def fingerprint(request: Any) -> str | None:
    """Gives what a request is compared by: map order does not matter, None neither binds nor is compared."""
    return None if request is None else json.dumps(request, sort_keys=True)


@dataclass
class Model:
    now: int
    head: int = 0
    operations: list[Operation] = field(default_factory=list)
    records: dict[Key, Record] = field(default_factory=dict)
    events: dict[Key, list[Event]] = field(default_factory=dict)
    steps: dict[Key, Any] = field(default_factory=dict)
    other_positions: list[int] = field(default_factory=list)
    """Where steps, compactions and resets stand."""
    cursors: dict[str, int] = field(default_factory=dict)
    cursor_streams: dict[str, str | None] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    """Which scripts were followed, in order; the machine empties it before each rule."""

    # Operations

    def append_all(
        self, stream: str, drafts: Sequence[tuple[str, Any]], actor: str, expected: int | None
    ) -> list[tuple[Operation, bool]]:
        """Gives each operation and whether it was repeated, or refuses all and changes nothing."""
        known = {o.op_id: o for o in self.present(stream)}
        answers: list[tuple[Operation, bool]] = []
        sequence, position = len(known), self.head
        for op_id, operation in drafts:
            if op_id in known:
                first = known[op_id]
                if (first.operation, first.actor) != (operation, actor):
                    raise Refused("IdentityConflictError", stream=stream, op_id=op_id)
                answers.append((first, True))
                continue
            sequence, position = sequence + 1, position + 1
            epoch = self.epochs.get(stream, 1)
            known[op_id] = Operation(stream, sequence, position, op_id, actor, self.now, operation, epoch)
            answers.append((known[op_id], False))
        new = [o for o, repeated in answers if not repeated]
        at = len(self.present(stream))
        if new and expected is not None and expected != at:
            raise Refused("SequenceConflictError", stream=stream, sequence=at, expected=expected)
        self.operations.extend(new)
        self.head = position
        return answers

    def read(self, stream: str | None = None, after: int = 0, limit: int | None = None) -> list[Operation]:
        """Gives the operations after a cursor."""
        self.check_cursor(after)
        found = [o for o in self.present(stream) if o.position > after]
        if any(self.is_compacted(o) for o in found):
            raise Refused("CompactedCursorError", cursor=after, floor=self.floor(stream), stream=stream)
        return found[:limit]

    def present(self, stream: str | None = None) -> list[Operation]:
        """Gives the operations of each stream's present epoch, compacted ones too."""
        return [o for o in self.operations if stream in (None, o.stream) and o.epoch == self.epochs.get(o.stream, 1)]

    def is_compacted(self, operation: Operation) -> bool:
        """Whether the content of an operation of the present epoch is gone."""
        return operation.position <= self.floors.get(operation.stream, 0)

    def floor(self, stream: str | None = None) -> int:
        """Gives how far a stream is compacted, or the one that is furthest."""
        return max(self.floors.values(), default=0) if stream is None else self.floors.get(stream, 0)

    def compact(self, stream: str, through: int, past_cursors: list[str], past_effects: list[Key]) -> int:
        """Drops what is at or below a position, and gives the floor."""
        if not self.present(stream) and stream not in self.epochs:
            raise Refused("InvalidCompactionError", stream=stream)
        if not 1 <= through <= self.head:
            raise Refused("InvalidCompactionError", stream=stream)
        floor = self.floor(stream)
        if not any(o.stream == stream and floor < o.position <= through for o in self.operations):
            return floor
        going = [o for o in self.present(stream) if floor < o.position <= through]
        for o in going:
            for name, cursor in self.cursors.items():
                is_reader = self.cursor_streams[name] in (None, stream)
                if is_reader and name not in past_cursors and cursor < o.position:
                    raise Refused("InvalidCompactionError", stream=stream)
            for record in self.unfinished():
                is_its_own = isinstance(record.key, tuple) and record.key[:3] == (stream, o.epoch, o.op_id)
                if is_its_own and record.key not in past_effects:
                    raise Refused("InvalidCompactionError", stream=stream)
        self.floors[stream] = through
        self._note_other()
        return through

    def reset(self, stream: str) -> int:
        """Begins a stream anew, and gives the epoch."""
        if stream not in self.streams():
            return 1
        self.epochs[stream] = self.epochs.get(stream, 1) + 1
        self.floors.pop(stream, None)
        self._note_other()
        return self.epochs[stream]

    def _note_other(self) -> None:
        self.head += 1
        self.other_positions.append(self.head)

    def streams(self) -> list[str]:
        """Gives the streams, sorted."""
        return sorted({o.stream for o in self.operations})

    def check_cursor(self, cursor: int) -> None:
        """Refuses a cursor that is not in the log."""
        if not 0 <= cursor <= self.head:
            raise Refused("InvalidCursorError", cursor=cursor, head=self.head)

    def save_cursor(self, name: str, cursor: int, stream: str | None) -> None:
        """Remembers a cursor, and what it reads."""
        self.check_cursor(cursor)
        self.cursors[name] = cursor
        self.cursor_streams[name] = stream

    # Effects: what is on record

    def _note(self, key: Key, phase: str, attempt: int, **facts: Any) -> None:
        self.head += 1
        self.events.setdefault(key, []).append(Event(self.head, self.now, phase, attempt, **facts))

    def _intend(self, key: Key, guarantee: str, request: Any) -> Record:
        old = self.records.get(key)
        if old is None:
            new = Record(key, guarantee, "intent", 1, self.now, fingerprint(request))
        else:
            new = replace(old, phase="intent", attempts=old.attempts + 1, reason=None, via=None)
            if new.request is None:
                new = replace(new, request=fingerprint(request))
        self._note(key, "intent", new.attempts)
        self.records[key] = new
        return new

    def _accept(self, key: Key, proof: Any, via: str, reason: str | None = None) -> None:
        record = self.records[key]
        self._note(key, "accepted", record.attempts, via=via, proof=proof, reason=reason)
        self.records[key] = replace(record, phase="accepted", proof=proof, via=via)

    def _fail(self, key: Key, via: str | None = None, reason: str | None = None) -> None:
        record = self.records[key]
        self._note(key, "failed", record.attempts, via=via, reason=reason)
        self.records[key] = replace(record, phase="failed", proof=None, reason=reason)

    def _become_uncertain(self, key: Key, via: str, reason: str | None = None) -> None:
        record = self.records[key]
        self._note(key, "uncertain", record.attempts, via=via, reason=reason)
        self.records[key] = replace(record, phase="uncertain", proof=None)

    def _release(self, key: Key, reason: str | None) -> None:
        record = self.records[key]
        self._note(key, "released", record.attempts, reason=reason)
        self.records[key] = replace(record, reason=reason)

    def conflicts(self, key: Key, guarantee: str, request: Any) -> bool:
        """Whether a key is bound to something else."""
        record, asked = self.records.get(key), fingerprint(request)
        if record is None:
            return False
        return record.guarantee != guarantee or (asked is not None and record.request not in (None, asked))

    def _answer(self, key: Key) -> tuple[Any, ...]:
        """Gives what every call returns for a settled effect."""
        record = self.records[key]
        return ("accepted", record.proof, record.via) if record.phase == "accepted" else ("uncertain",)

    # Effects: calls

    def effect(self, key: Key, run: Script, reconcile: Script, request: Any) -> tuple[Any, ...]:
        """Gives ("accepted", proof, via) or ("uncertain",)."""
        if self.conflicts(key, "at_most_once", request):
            raise Refused("EffectConflictError", key=key)
        record = self.records.get(key)
        if record is not None and record.phase in ("accepted", "uncertain"):
            return self._answer(key)
        if record is not None and record.phase == "intent":
            self.calls.append("reconcile")
            word = reconcile[0]
            if word == "finds":
                self._accept(key, reconcile[1], "reconcile")
                return self._answer(key)
            if word == "nothing":
                self._become_uncertain(key, "reconcile")
                return self._answer(key)
            if word == "interrupts":
                raise Interrupted
            if word == "dies":
                raise Died
            if word in ("raises", "unkept"):
                reason = "reconcile-failed" if word == "raises" else "proof-rejected"
                raise Refused("EffectUnresolvedError", key=key, reason=reason)
            assert word == "absent"
            self._fail(key)
        self._intend(key, "at_most_once", request)
        self.calls.append("run")
        self._follow(key, run)
        if run[0] == "absent":
            self._fail(key)
            raise Refused("EffectFailedError", key=key)
        if run[0] == "raises":
            self._release(key, "run-failed")
            raise Refused("EffectUnresolvedError", key=key, reason="run-failed")
        return self._answer(key)

    def run_effect(self, key: Key, run: Script, request: Any, *, retry_failed: bool = True) -> Any:
        """Gives the result."""
        if self.conflicts(key, "idempotent", request):
            raise Refused("EffectConflictError", key=key)
        record = self.records.get(key)
        if record is not None and record.phase == "accepted":
            return record.proof
        if record is not None and record.phase == "uncertain":
            raise Refused("EffectUnresolvedError", key=key, reason="uncertain")
        # What a walk passed before its first attempt was never tried: to run it is no retry.
        if record is not None and record.phase == "failed" and record.attempts and not retry_failed:
            raise Refused("EffectFailedError", key=key)
        self._intend(key, "idempotent", request)
        self.calls.append("run")
        self._follow(key, run)
        if run[0] in ("absent", "raises"):
            self._fail(key)
            raise Refused("NotPerformed" if run[0] == "absent" else "Boom")
        record = self.records[key]
        if record.phase == "uncertain":
            raise Refused("EffectUnresolvedError", key=key, reason="uncertain")
        return record.proof

    def _follow(self, key: Key, run: Script) -> None:
        """Does what both guarantees do alike after the intent."""
        word = run[0]
        if word == "dies":
            raise Died
        if word == "interrupts":
            self._release(key, None)
            raise Interrupted
        if word == "unkept":
            self._release(key, "proof-rejected")
            raise Refused("EffectUnresolvedError", key=key, reason="proof-rejected")
        if word == "returns":
            self._accept(key, run[1], "run")
        elif word == "resolved":
            self._decide(key, run[1])

    def _decide(self, key: Key, outcome: Script) -> None:
        if outcome[0] == "accepted":
            self._accept(key, outcome[1], "resolve", "person")
        elif outcome[0] == "uncertain":
            self._become_uncertain(key, "resolve", "person")
        else:
            self._fail(key, "resolve", "person")

    def resolve(self, key: Key, outcome: Script, *, is_current: bool) -> None:
        """Lets a person decide about a record that is there."""
        if self.records[key].phase == "accepted" or not is_current:
            raise Refused("EffectConflictError", key=key)
        self._decide(key, outcome)

    def clear_effect(self, key: Key) -> None:
        """Makes the next call new work."""
        record = self.records.pop(key, None)
        if record is not None:
            self._note(key, "cleared", record.attempts, reason="cleared")

    def step(self, key: Key, body: Script) -> Any:
        """Gives the result of a computation."""
        if key in self.steps:
            return self.steps[key]
        self.calls.append("body")
        if body[0] == "interrupts":
            raise Interrupted
        if body[0] == "dies":
            raise Died
        if body[0] != "returns":
            raise Refused({"absent": "NotPerformed", "raises": "Boom", "unkept": "TypeError"}[body[0]])
        self.steps[key] = body[1]
        self._note_other()
        return body[1]

    def effects(self, phase: str | None = None, prefix: Key | None = None) -> list[Record]:
        """Gives every record, by key."""
        return [
            self.records[key]
            for key in sorted(self.records, key=order)
            if (phase is None or self.records[key].phase == phase) and (prefix is None or starts_with(key, prefix))
        ]

    def unfinished(self) -> list[Record]:
        """Gives the records in phase intent or failed, by key."""
        return [record for record in self.effects() if record.phase in ("intent", "failed")]

    # Recovery

    def recover(
        self,
        cursor: int,
        intents: Callable[[Operation], Sequence[PlannedIntent]],
        *,
        stream: str | None,
        on_unresolved: Callable[[Key], str],
        on_uncertain: Callable[[Key], str],
        limit: int | None,
    ) -> Walk:
        """Walks the operations after a cursor and says how far everything settled."""
        walk = Walk(cursor)
        for operation in self.read(stream, cursor, limit):
            for intent in intents(operation):
                reason = self._settle(walk, intent, on_unresolved, on_uncertain)
                if reason is not None:
                    walk.stopped = (operation.position, intent.key, reason)
                    return walk
            walk.cursor = operation.position
        return walk

    def _settle(
        self,
        walk: Walk,
        intent: PlannedIntent,
        on_unresolved: Callable[[Key], str],
        on_uncertain: Callable[[Key], str],
    ) -> str | None:
        """Settles one intent, or gives why the walk stops at it."""
        key, record = intent.key, self.records.get(intent.key)
        if self.conflicts(key, intent.guarantee, intent.request):
            if on_unresolved(key) == "pass":
                walk.passed += 1
                return None
            return "conflict"
        if record is not None and record.phase == "accepted":
            walk.reused += 1
            return None
        if record is None or record.phase != "uncertain":
            answer = on_unresolved(key)
            if answer == "skip":
                return "skipped"
            if answer == "pass":
                if record is None:
                    self.records[key] = Record(
                        key, intent.guarantee, "failed", 0, self.now, fingerprint(intent.request), was_passed=True
                    )
                    self._fail(key, reason="passed")
                walk.passed += 1
                return None
            call_count = len(self.calls)
            try:
                if intent.guarantee == "idempotent":
                    self.run_effect(key, intent.run, intent.request)
                else:
                    self.effect(key, intent.run, intent.reconcile, intent.request)
            except Refused as refused:
                if self.records[key].phase != "uncertain":
                    return "unresolved" if refused.name == "EffectUnresolvedError" else "failed"
            if self.records[key].phase == "accepted":
                if "run" in self.calls[call_count:]:
                    walk.ran += 1
                else:
                    walk.reconciled += 1
                return None
            walk.became_uncertain += 1
        if on_uncertain(key) == "stop":
            return "uncertain"
        walk.uncertain += 1
        return None
