"""`journal demo`: its options, and its exit status."""

import contextlib
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from journal.cli.demo.children import ChildError
from journal.cli.demo.deliveries import Delivery, DeliveryError, make_deliveries, read_deliveries
from journal.cli.demo.progress import show_progress
from journal.cli.demo.stage import perform
from journal.cli.demo.table import print_report

KILLS_DEFAULT = 25
EXIT_FOUND = 1


def demo(
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE.jsonl",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Deliveries, one JSON object a line: delivery (its identity), event, payload. Made up when left out.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", help="Draw the moments of the kills and all delays from this number; printed when left out."
        ),
    ] = None,
    kills: Annotated[int, typer.Option("--kills", min=0, help="How often each service is killed.")] = KILLS_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="DIR", help="Leave the journal, the recipients' stores and the logs in this new folder."
        ),
    ] = None,
) -> None:
    """Kill a service at random moments and count what reached the recipient.

    A service appends each delivery to a journal and has an effect performed for it by a recipient over HTTP. It is
    killed with SIGKILL again and again, and recovers. The table counts, from the recipient's own store, what was
    doubled, lost or left uncertain for three kinds of recipients, beside the same services without a journal.

    Exits with 1 when anything was doubled or lost against the promise, with 2 on wrong use.
    """
    seed = random.randrange(1_000_000) if seed is None else seed
    deliveries = make_deliveries(seed) if input_path is None else _read(input_path)
    with _directory(keep) as directory, _terminated_as_exit():
        try:
            with show_progress(Console(stderr=True), lines=len(deliveries), kills=kills) as progress:
                report = perform(directory, deliveries, seed=seed, kills=kills, progress=progress)
        except ChildError as error:
            print(f"journal demo (seed {seed}): {error}", file=sys.stderr)
            raise typer.Exit(EXIT_FOUND) from error
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        print_report(report, Console())
    if report.broken:
        raise typer.Exit(EXIT_FOUND)


def _read(path: Path) -> list[Delivery]:
    try:
        deliveries = read_deliveries(path)
    except (DeliveryError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--input") from error
    if not deliveries:
        raise typer.BadParameter(f"no deliveries in {path}", param_hint="--input")
    return deliveries


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Where the trials leave their files: a new folder that stays, or one that goes."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="journal-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot make a new folder: {error}", param_hint="--keep") from error
    yield keep


@contextlib.contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that processes and files are cleaned up."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
