"""Find the code blocks of a page and run them, in order, as a reader would.

How a page is read:

- ` ```python ` runs in one namespace for the whole page, in an empty directory.
- ` ```python title="service.py" ` is written to that file, for later blocks to use.
- ` ```text title="output" ` right after a python block is what that block prints.
- ` ```console ` holds `$ commands` and, below each, what it prints.
- Expected text may hold `...` for whatever differs from run to run.
- `<!-- no-run: reason -->` on the line above a python or console block leaves it out.

Run as a script with the path of a page, it runs that page in the working directory.
"""

import contextlib
import doctest
import io
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMAND_SECONDS_MAX = 120

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<info>.*)")
_TITLE = re.compile(r'title="(?P<title>[^"]*)"')
_NO_RUN = re.compile(r"<!-- no-run: (?P<reason>\S.*) -->")


class Block(msgspec.Struct, frozen=True):
    """One fenced block; `line` is that of its opening fence and starts at 1."""

    page: str
    line: int
    language: str
    title: str
    no_run: str
    text: str

    def __str__(self) -> str:
        """Give the place as editors take it."""
        return f"{self.page}:{self.line}"


def read_blocks(page: pathlib.Path) -> Iterator[Block]:
    """Every fenced block of `page`, from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    name = str(page.relative_to(ROOT))
    line_index = 0
    while line_index < len(lines):
        opening = _FENCE.fullmatch(lines[line_index])
        if opening is None:
            line_index += 1
            continue
        start = line_index
        closing = opening["indent"] + opening["ticks"]
        line_index += 1
        while lines[line_index] != closing:
            line_index += 1  # An unclosed fence runs off the page and fails as IndexError.
        title = _TITLE.search(opening["info"])
        reason = _NO_RUN.fullmatch(lines[start - 1].strip()) if start else None
        indent = len(opening["indent"])
        yield Block(
            page=name,
            line=start + 1,
            language=(opening["info"].split() or [""])[0],
            title=title["title"] if title else "",
            no_run=reason["reason"] if reason else "",
            text="".join(f"{line[indent:]}\n" for line in lines[start + 1 : line_index]),
        )
        line_index += 1


def read_commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the text expected below it."""
    command, expected = "", ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), ""
        elif command.endswith("\\"):
            command = f"{command}\n{line}"
        else:
            expected += f"{line}\n"
    if command:
        yield command, expected


def check_output(block: Block, expected: str, given: str) -> None:
    """Stop the run where `given` is not what the page says."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(expected, given, flags):
        sys.exit(f"{block}: the page says\n{expected}\nbut this was printed:\n{given}")


def run_page(page: pathlib.Path) -> None:
    """Run the blocks of `page` in the working directory."""
    sys.path.insert(0, "")  # a block imports what a block before it wrote
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in read_blocks(page):
        if block.language == "text" and block.title == "output":
            if printed is None:
                sys.exit(f"{block}: no python block right above this output")
            check_output(block, block.text, printed)
        printed = None
        if block.no_run:
            continue
        if block.language == "python" and block.title:
            pathlib.Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Empty lines in front give a traceback the line numbers of the page.
            source = "\n" * block.line + block.text
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(source, block.page, "exec"), namespace)
            printed = stdout.getvalue()
        elif block.language == "console":
            for command, expected in read_commands(block):
                done = subprocess.run(
                    ["bash", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=COMMAND_SECONDS_MAX,
                    check=False,
                )
                # An interactive shell says so; one that was replaced by its last command cannot.
                killed = "Killed\n" if done.returncode == -signal.SIGKILL else ""
                check_output(block, expected, done.stdout + killed)


if __name__ == "__main__":
    run_page(pathlib.Path(sys.argv[1]).resolve())
