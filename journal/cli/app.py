"""The commands of `journal`, each from a module of its own."""

import importlib.metadata
from typing import Annotated

import typer

from journal.cli.demo.command import demo

DISTRIBUTION = "effect-journal"

# Markdown, so that a docstring is broken into lines by the width of the terminal alone.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, rich_markup_mode="markdown"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version(DISTRIBUTION))
        raise typer.Exit


@app.callback()
def journal(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """An embedded, event-sourced journal for services whose work reaches into other systems."""


app.command("demo")(demo)
