"""Runs one function in a fresh process, so that its memory and its first use of a journal are its own.

`in_child("benchmarks.open_many:listing", path)` imports the module there, calls the function with the arguments, and
gives what it returned. Arguments and result travel as JSON.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """Memory of this process in MiB: its own (heap and stacks) now, and the most it ever had with mapped pages.

    Pages of the data file count towards `peak` while they are mapped, though the kernel takes them back when it
    likes; a leak shows in `own`.
    """

    own: float
    peak: float

    @classmethod
    def now(cls) -> "Memory":
        """What the kernel says about this process."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        own, peak = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "VmHWM"))
        return cls(own, peak)


def in_child(function: str, *arguments: object) -> dict[str, float]:
    """What the function returned in a fresh process: a map of figures.

    Raises:
        subprocess.CalledProcessError: it raised; its traceback went to standard error.
    """
    command = [sys.executable, "-m", "benchmarks._child", function, json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main(function: str, arguments: str) -> None:
    """Calls the function and prints what it returned."""
    module_name, name = function.split(":")
    call: Any = getattr(importlib.import_module(module_name), name)
    print(json.dumps(call(*json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
