"""The examples in docstrings run."""

import doctest
import importlib
import pathlib
import pkgutil

import pytest

import journal
import recovery

MODULES = [
    name
    for package in (journal, recovery)
    for name in [
        package.__name__,
        *(found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
    ]
    if not name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each example gives what its docstring shows, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)

    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS, report=True)

    assert result.failed == 0
