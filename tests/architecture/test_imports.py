"""The layers hold, and every module has its place in them."""

import ast
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from tests.conftest import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_import_contracts_are_kept() -> None:
    """Every contract of `pyproject.toml` holds for the tree."""
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_layer() -> None:
    """A module that no layer names would be free to import anything."""
    (layers,) = [
        contract["layers"] for contract in SETTINGS["tool"]["importlinter"]["contracts"] if contract["id"] == "layers"
    ]
    named = {name.strip(" ()") for layer in layers for name in layer.replace(":", "|").split("|")}
    modules = {
        f"journal.{path.stem}"
        for path in (ROOT / "journal").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }

    assert modules - named == set()


def test_only_storage_imports_lmdb() -> None:
    """What LMDB is called and how it behaves is known in one place, lazy imports included."""
    importers = {
        path.relative_to(ROOT).parts[:2]
        for package in ("journal", "recovery")
        for path in (ROOT / package).rglob("*.py")
        if "lmdb" in {name.split(".", maxsplit=1)[0] for name in imported_names(path)}
    }

    assert importers <= {("journal", "_storage")}


def test_importing_the_library_brings_no_extra() -> None:
    """`import journal` works with the declared dependencies alone, and leaves out what only the demo needs."""
    unwanted = {"typer", "click", "http.server", "sqlite3", "multiprocessing"}
    program = "import sys, journal, recovery; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert unwanted & set(done.stdout.split()) == set()


def imported_names(path: pathlib.Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
