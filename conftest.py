"""What holds for every test and every example in a docstring."""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections.abc import Iterator

# One thread each: the tests themselves run side by side on all cores, and sums come out the same to the bit.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np  # after that: it reads them when it is loaded
import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environment of MMDetection has no property tests
    pass
else:
    # A test that fails because the machine is busy tells nothing, and one run is as good as another: the same examples
    # each time. `--hypothesis-profile search` looks for new ones.
    # Hypothesis also draws numbers that stand in the modules that happen to be loaded, so how many examples a test
    # throws away depends on the tests before it; one that throws away all of them still fails.
    unhealthy = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    settings.register_profile("search", deadline=None, suppress_health_check=unhealthy)
    settings.register_profile("logn", settings.get_profile("search"), derandomize=True)
    settings.load_profile("logn")

PLAIN_PRINTING = np.get_printoptions()
try:
    from PIL import Image, ImageFile
except ImportError:
    PLAIN_PILLOW = []
else:
    PLAIN_PILLOW = [(Image, "open", Image.open), (ImageFile, "LOAD_TRUNCATED_IMAGES", False)]


@pytest.fixture(autouse=True)
def untouched_by_other_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what some frameworks change for the whole process when they are imported, as ultralytics does."""
    for owner, name, value in PLAIN_PILLOW:
        monkeypatch.setattr(owner, name, value)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):  # whoever starts the tests may have a terminal; they have none
        monkeypatch.delenv(name, raising=False)
    with np.printoptions(**PLAIN_PRINTING):
        yield


def seed(name: str) -> None:
    """Set all random states that tests and packages share."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - what packages draw from
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Begin every fixture with a random state of its own, whichever tests ran before it in this process."""
    seed(f"{fixturedef.baseid}::{fixturedef.argname}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Begin every test with a random state of its own."""
    seed(item.nodeid)


GET_CHROMIUM = (
    "The report was not tested in a browser. To get one: `apt-get install chromium chromium-driver` (Debian), "
    "`dnf install chromium chromedriver` (Fedora), `pacman -S chromium` (Arch), "
    "`brew install --cask google-chrome chromedriver` (macOS)."
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say at the very end how the tests in a browser can be run, where they were not."""
    yield
    if any("in_chromium" in report.nodeid for report in terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(GET_CHROMIUM, yellow=True)
