"""Every limit of the journal, with its unit and its reason.

Nothing here is read from the environment; what a caller may choose is an argument of `journal.open`.
"""

from __future__ import annotations

from typing import Final

STREAM_BYTES_MAX: Final = 255
"""UTF-8 bytes of a stream's or cursor's name; it stands in index keys, and LMDB keys end at 511 bytes."""

OP_ID_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of an op_id; indexes hold its digest."""

ACTOR_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of an actor."""

KEY_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of an effect's key (of a tuple's JSON array); above `INDEX_KEY_BYTES_MAX` indexes hold a digest."""

INDEX_KEY_BYTES_MAX: Final = 511
"""The longest key of LMDB 0.9 (`mdb_env_get_maxkeysize`)."""

PROOF_BYTES_MAX: Final = 65_536
"""Bytes of a proof as JSON: a proof is what the recipient named the effect, an identity and no payload."""

VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of an operation, or of a result of `run_effect` or `step`, as JSON; one record is one LMDB value."""

EXAMINATION_BYTES_MAX: Final = 4 * 1024 * 1024
"""A data file up to here has its pages looked at by `verify` itself; a larger one in a process of their own."""

EXAMINATION_SECONDS_MAX: Final = 600
"""How long a process that looks at a damaged or large file may take."""

VALUE_DEPTH_MAX: Final = 128
"""Levels of nesting of a value; decoders recurse, and a stack is not endless."""

TEXT_CHARS_MAX: Final = 2_000
"""Characters kept of an error's text or of a reason that was not a caller's to limit."""

REASON_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of the reason that a person gives."""

STATES_MAX: Final = 4_096
"""Streams whose newest state a handle remembers; the others' begin with their snapshot."""

STATES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the states that a handle remembers, as JSON: four of the largest."""

PAGE_RECORDS: Final = 256
"""Records read in one read transaction while iterating: an old reader pins every page freed since."""

PAGE_SCAN_RECORDS: Final = 4_096
"""Log records looked at in one read transaction, operations or not."""

PRUNE_EFFECTS_MAX: Final = 128
"""Effects pruned in one transaction: bounds how long it holds up others, and the pages that it writes anew."""

PRUNE_EVENTS_MAX: Final = 1_024
"""Events after which a transaction that prunes takes no further effect; one with more of them goes alone."""

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes after which a page of records ends early, so that large operations do not pile up in memory."""

DROP_RECORDS: Final = 1_024
"""Operations whose payloads a compaction drops in one transaction: others wait for the writer's turn meanwhile."""

MAP_BYTES_DEFAULT: Final = 64 * 1024**3
"""Where the map begins: address space, not disk. Smaller where the process may not have so much."""

MAP_BYTES_MIN: Final = 1024 * 1024
"""The smallest map that holds the tables and some records."""

MAP_BYTES_MAX: Final = 1 << 46
"""64 TiB: what fits into the addresses of a process of today with room for all else."""

MAP_RESERVE_BYTES: Final = 256 * 1024
"""Room below `max_size` that only outcomes may use, so that what is in flight can be recorded at the ceiling."""

DISK_RESERVE_BYTES: Final = 256 * 1024
"""Bytes of the data file kept allocated past its last page, so that what is in flight can be recorded on a full disk: an
outcome renews at most a dozen pages, most of which are used again by the one after the next."""

DISK_STEP_BYTES: Final = 256 * 1024
"""What is allocated more than is needed, so that hundreds of commits share one call of the file system's."""

DISK_RETRY_BYTES: Final = 64 * 1024
"""More than that must be free than was missing, before a disk that was full counts as one with room."""

READERS_MAX: Final = 2_048
"""Reader slots shared by all processes: one for each live read transaction, 64 bytes each."""

SWEEP_SECONDS: Final = 1.0
"""How often a process that commits frees the slots of dead readers, which keep pages from being used again."""

SPARE_READERS: Final = 8
"""Reader slots that a process keeps for its next reads: as many threads as read at once in a busy one."""

BATCH_ENTRIES_MAX: Final = 1_024
"""Entries of one shared commit: bounds the time that the first of them waits."""

WAIT_TIMEOUT_SECONDS: Final = 30.0
"""How long a call waits for another process, when `open` is not told otherwise."""

RECONCILE_TIMEOUT_SECONDS: Final = 30.0
"""How long a recipient may take to answer a reconcile, when the call does not say."""

POLL_SECONDS_MIN: Final = 0.0002
"""First pause of a wait for another process; it grows up to `POLL_SECONDS_MAX`."""

POLL_SECONDS_MAX: Final = 0.02
"""Longest pause of a wait for another process."""

WAIT_STEP_SECONDS_MAX: Final = 0.1
"""Longest time between two looks of `Journal.wait`, which may go on for hours, and many at once."""

COURTESY_SECONDS: Final = 0.25
"""How long a writer lets the one that waits longest go first, before it contends for the turn itself."""

FORK_SECONDS_MAX: Final = 1.0
"""How long a parent waits for its forked child to close the journal that it inherited, before it goes on reading."""

DISTRUST_SECONDS: Final = 2.0
"""How long a writer goes past one that waits longest and does not take its turn: it is stopped, and may be for long."""

PROGRESS_SECONDS: Final = 0.1
"""Shortest time between two calls of a recovery's `progress`."""

RECONCILE_GRACE_SECONDS: Final = 1.0
"""How long a coroutine `reconcile` may go on past its deadline, after its signal said so, before it is cancelled."""

CLOSE_GRACE_SECONDS: Final = 1.0
"""How long `AsyncJournal.close` lets a coroutine `run` that it cancelled come to its end."""

TURN_SECONDS_MAX: Final = 0.005
"""After this long a walk that had to wait for nothing lets the other tasks of its loop have their turns."""

IDLE_SECONDS: Final = 1.0
"""How long a thread that ran a plain function for a task waits for the next one."""
