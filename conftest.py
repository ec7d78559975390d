"""What holds for every test and every example in a docstring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

try:
    from hypothesis import settings
except ImportError:  # the environment of MMDetection has no property tests
    pass
else:
    # A test that fails because the machine is busy tells nothing.
    settings.register_profile("logn", deadline=None)
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
    with np.printoptions(**PLAIN_PRINTING):
        yield
