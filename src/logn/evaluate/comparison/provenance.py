"""How a comparison was made: when, with which versions, by which command, from which files."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from logn import __version__
from logn.statistics.moments import ClassMoments

PACKAGES = ("numpy", "hotcoco", "torch", "torchvision")


@dataclass(frozen=True)
class Provenance:
    """Everything that somebody needs who wants to check or repeat the numbers.

    Args:
        created: Date and time, UTC.
        versions: Version of each package by name, LogN and Python included.
        command: The words of the command line; empty for a comparison that was made from Python.
        inputs: What is known of the inputs, as plain values: "predictions", "annotations", "statistics" and so on.
    """

    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def now(cls, inputs: Mapping[str, Any]) -> Provenance:
        """Of a comparison that is made now."""
        return cls(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", installed_versions(), (), inputs)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Provenance:
        """Read what `to_dict` gave, also after a way through JSON.

        Example:
            >>> made = Provenance("2026-01-01 00:00 UTC", {"logn": "0.1.0"}, ("logn", "compare"))
            >>> Provenance.from_dict(made.to_dict()) == made
            True
        """
        command = tuple(map(str, content["command"]))
        return cls(str(content["created"]), dict(content["versions"]), command, dict(content["inputs"]))


def installed_versions() -> dict[str, str]:
    """Version of LogN, of the packages that numbers depend on, as far as they are installed, and of Python."""
    found = {"logn": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "Python": platform.python_version()}


def describe_statistics(moments: ClassMoments) -> dict[str, Any]:
    """What statistics say of themselves, as plain values.

    Example:
        >>> describe_statistics(ClassMoments(2))["logits"]
        0
    """
    metadata = moments.metadata
    return {
        "logits": int(moments.count.max()),
        "layer": metadata.layer,
        "population": metadata.population,
        "activation": metadata.activation,
        "fingerprint": metadata.fingerprint,
    }
