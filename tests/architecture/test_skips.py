"""A skip that nobody allowed is a failure: `tests/conftest.py` under test."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def run_pytest(folder: pathlib.Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run `text` as a test module under a copy of our conftest and settings."""
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n@pytest.mark.skip(reason='later')\ndef test_it(): pass\n",
        "import pytest\ndef test_it(): pytest.skip('later')\n",
        "import pytest\npytest.skip('later', allow_module_level=True)\n",
        "import pytest\npytest.importorskip('no_such_module')\n",
        "import pytest\n@pytest.mark.needs('sunshine')\ndef test_it(): pytest.skip('rain')\n",
        "import pytest\n@pytest.mark.xfail(reason='wrong')\ndef test_it(): pass\n",
    ],
    ids=["mark", "call", "module", "import", "unlisted need", "passing xfail"],
)
def test_unexpected_skip_fails_the_run(tmp_path: pathlib.Path, text: str) -> None:
    """Whatever way a test is left out, the run is red."""
    done = run_pytest(tmp_path, text)

    assert done.returncode != 0, done.stdout


def test_listed_need_may_be_skipped(tmp_path: pathlib.Path) -> None:
    """A test that names what the machine lacks is skipped, and the run stays green."""
    text = "import pytest\n@pytest.mark.needs('root')\ndef test_it(): pytest.skip('no root')\n"

    done = run_pytest(tmp_path, text + "def test_other(): pass\n")

    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
