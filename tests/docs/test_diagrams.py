"""The diagrams of states show what the code decides by."""

import importlib.util

from tests.conftest import ROOT


def test_diagrams_are_drawn_from_the_tables() -> None:
    """docs/internals/states.md is in step with the tables; `python docs/diagrams.py` writes it anew."""
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)

    _, printed, _ = diagrams.split(diagrams.PAGE.read_text(encoding="utf-8"))

    assert printed == f"\n{diagrams.render()}\n"
