"""What people see while the trials run: bars on a terminal, else a line for each trial that is done."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from journal.cli.demo import stage
from journal.cli.demo.table import TITLES


@contextlib.contextmanager
def show_progress(console: Console, *, lines: int, kills: int) -> Iterator[stage.Progress]:
    """Gives the function that shows a step; it may be called from any thread."""
    if not console.is_terminal:

        def show_end(name: str, acknowledged: int, killed: int) -> None:
            if acknowledged == lines:
                console.print(f"{TITLES[name]}: {lines} deliveries, {killed} kills", highlight=False)

        yield show_end
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[killed]:>3}}/{kills} kills"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(TITLES[name], total=lines, killed=0) for name in stage.CASTS}

        def show_step(name: str, acknowledged: int, killed: int) -> None:
            bars.update(tasks[name], completed=acknowledged, killed=killed)

        yield show_step
