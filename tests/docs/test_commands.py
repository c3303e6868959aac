"""The command line's page in the reference, against the command line."""

from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup, TyperOption

from journal.cli.app import app
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def commands() -> dict[str, Any]:
    """Every command by its name."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return dict(group.commands)


@pytest.mark.parametrize("name", commands())
def test_every_command_is_documented_and_has_help(name: str) -> None:
    """A command has a section of its own, with each of its options, and `--help` says what each is for."""
    command = commands()[name]
    options = [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
    section = PAGE.partition(f"## `journal {name}`")[2].partition("\n## ")[0]

    assert command.help
    assert [option.name for option in options if not option.help] == []
    assert [option.opts[-1] for option in options if f"`{option.opts[-1]}" not in section] == []
