"""The `journal` command itself: what it needs, and what it says of itself."""

import importlib.metadata
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from journal.cli.app import app


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra_is_named_with_its_command(missing: str) -> None:
    """Without the extra `cli` the command says what to install, and exits as for wrong use."""
    blocked = f"import sys; sys.modules[{missing!r}] = None; from journal.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert "pip install 'effect-journal[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_error_of_our_own_is_not_taken_for_a_missing_extra() -> None:
    """Another module that is missing is a defect, and shows its traceback."""
    blocked = "import sys; sys.modules['journal.cli.demo'] = None; from journal.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--version` prints the installed version alone."""
    versions = {"effect-journal": "1.2.3"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)

    done = CliRunner().invoke(app, ["--version"])

    assert (done.exit_code, done.stdout) == (0, "1.2.3\n")


def test_every_command_has_help() -> None:
    """Called with nothing, the command lists its commands; each of them explains itself."""
    commands = [command.name for command in app.registered_commands]

    listed = CliRunner().invoke(app, [])
    helped = {name: CliRunner().invoke(app, [str(name), "--help"]) for name in commands}

    assert listed.exit_code == 2
    assert all(str(name) in listed.output for name in commands)
    assert all(help_.exit_code == 0 and "--json" in help_.stdout for help_ in helped.values())
