"""Values that every reader of JSON takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain_values(value: Any) -> Any:
    """Arrays become lists and paths text; what is not a finite number becomes None, since strict readers refuse NaN.

    Example:
        >>> plain_values({"AP": (0.5, float("nan")), "file": Path("x.npy")})
        {'AP': [0.5, None], 'file': 'x.npy'}
    """
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy here
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return str(value) if isinstance(value, Path) else value
