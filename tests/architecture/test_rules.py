"""House rules that no linter knows."""

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

FOLDERS = ("journal", "recovery", "tests", "benchmarks", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = [path for path in FILES if path.name.startswith("test_")]

# A lint is silenced by its code and " - reason"; a type error by its code and, as mypy wants it, a second comment.
EXCUSE = re.compile(r"#\s*(?:noqa|type:\s*ignore|pragma|fmt:|ruff:)")
GOOD_EXCUSE = re.compile(
    r"# (?:noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)* - |type: ignore\[[\w\-, ]+\]  ?# |pragma: no cover - )(?P<reason>.{8,})"
)
# What holds this very rule against files, and says it in words.
ABOUT_EXCUSES = {ROOT / "tests" / "architecture" / "test_rules.py"}


def name_of(path: pathlib.Path) -> str:
    """The path as a test id."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in FILES if path not in ABOUT_EXCUSES], ids=name_of)
def test_every_excuse_has_its_code_and_reason(path: pathlib.Path) -> None:
    """A check is switched off by name only, and the line says why."""
    bare = [
        f"{name_of(path)}:{token.start[0]}: {token.string}"
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type == tokenize.COMMENT and EXCUSE.search(token.string) and not GOOD_EXCUSE.search(token.string)
    ]

    assert bare == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_test_states_its_property(path: pathlib.Path) -> None:
    """The docstring of a test gives the property, the name alone is too short for it."""
    silent = [f"{name_of(path)}:{test.lineno}: {test.name}" for test in cases_of(path) if not ast.get_docstring(test)]

    assert silent == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_skip_has_a_reason(path: pathlib.Path) -> None:
    """Who leaves a test out says why."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    silent = [
        f"{name_of(path)}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail"}
        if not says_why(calls.get(id(node)))
    ]

    assert silent == []


def says_why(call: ast.Call | None) -> bool:
    """Whether a call of `skip`, `skipif` or `xfail` gives a reason."""
    if call is None or not isinstance(call.func, ast.Attribute):
        return False
    named = any(keyword.arg == "reason" for keyword in call.keywords)
    return named or (call.func.attr == "skip" and bool(call.args))


def cases_of(path: pathlib.Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test function of a file, those in classes too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_every_limit_says_its_unit_and_reason() -> None:
    """Each constant of `journal/options.py` is followed by a sentence about it."""
    body = ast.parse((ROOT / "journal" / "options.py").read_text(encoding="utf-8")).body
    silent = [
        ast.unparse(node)
        for node, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]

    assert silent == []
