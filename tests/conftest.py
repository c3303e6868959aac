"""Rules for every test: no skip without leave, settings for Hypothesis, children that run this tree."""

import os
import pathlib
import signal
from collections.abc import Generator

import hypothesis
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a machine may lack, and why that is allowed; `@pytest.mark.needs("...")` names one of these.
# Anything else that is skipped was expected to run, and fails instead.
MAY_LACK = {
    "root": "mounts a small file system, or gives away a file; a developer's account may not",
    "pid namespaces": "only root, or a user whom the machine allows it, can make one",
    "network file system": "only root on a machine with the right kernel module can mount one",
}

hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
# A red run must be one that the next run repeats.
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Let child processes import the tree under test, whatever is installed, and be interrupted."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # Whoever starts the tests in the background of a shell has SIGINT ignored, and so would every child that a test
    # wants to interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a `needs` mark that names something unlisted."""
    for item in items:
        for mark in item.iter_markers("needs"):
            if mark.kwargs or len(mark.args) != 1 or mark.args[0] not in MAY_LACK:
                msg = f"{item.nodeid}: {mark} is not one of {sorted(MAY_LACK)}; see tests/README.md"
                raise pytest.UsageError(msg)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip without a `needs` mark into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("needs"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped without a `needs` mark: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure."""
    report = yield
    if report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped as a whole: {report.longrepr}"
    return report
