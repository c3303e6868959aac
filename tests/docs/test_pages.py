"""What the README and the docs tell people to run, runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs import pages
from tests.docs.pages import PAGES, ROOT, Block, read_blocks, read_commands

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
RUNNABLE = {"python", "console"}
# What is not run must say what it is, so that nothing that could run hides behind a bare fence.
SHOWN = {"bash", "text", "toml", "mermaid", "json"}
PAGES_TO_RUN = [
    page for page in PAGES if any(block.language in RUNNABLE and not block.no_run for block in read_blocks(page))
]


@pytest.mark.parametrize("page", PAGES_TO_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs(tmp_path: pathlib.Path, page: pathlib.Path) -> None:
    """The blocks of a page run from top to bottom in an empty directory and print what they say."""
    bin_directory = pathlib.Path(sys.executable).parent
    path = os.pathsep.join([str(bin_directory), os.environ["PATH"]])

    done = subprocess.run(
        [sys.executable, "-W", "error", pages.__file__, page],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block: Block) -> None:
    """A fence names a language, and only what runs may be excused from running."""
    assert block.language in RUNNABLE | SHOWN
    assert not block.no_run or block.language in RUNNABLE


def test_no_fence_of_tildes_escapes() -> None:
    """The other way to write a fence, which `pages.py` does not read, is not used."""
    tildes = [page for page in PAGES if "\n~~~" in page.read_text(encoding="utf-8")]

    assert tildes == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_named_is_there(page: pathlib.Path) -> None:
    """A path of the tree that a page names in code type leads somewhere, and so does a test in it."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:journal|recovery|tests|benchmarks|docs)/[\w/.\-]*)(?:::(\w+))?`", text)
    scripts = re.findall(r"python -m benchmarks (\w+)", text)
    missing = [path for path, _ in named if not (ROOT / path).exists()]
    missing += [script for script in scripts if not (ROOT / "benchmarks" / f"{script}.py").exists()]
    missing += [
        f"{path}::{test}"
        for path, test in named
        if test and path not in missing and f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]

    assert missing == []


def commands() -> list[str]:
    """Every `journal ...` command line that a page shows."""
    found = []
    for block in BLOCKS:
        if block.language == "bash":
            parts = block.text.replace("\\\n", " ").replace("&&", "\n").splitlines()
        elif block.language == "console":
            parts = [command for command, _ in read_commands(block)]
        else:
            continue
        found += [part.strip() for part in parts if part.strip().startswith("journal ")]
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_every_command_shown_exists(command: str) -> None:
    """A `journal` command of a page has help, and knows the options that the page gives it."""
    words = command.split(" #", maxsplit=1)[0].split()[1:]
    options = [word.split("=")[0] for word in words if word.startswith("-")]

    done = subprocess.run(
        [sys.executable, "-c", "from journal.cli import main; main()", words[0], "--help"],
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert [option for option in options if option not in done.stdout] == []
