"""Tests of the scripts' own modules, which are in the source distribution but in no wheel."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
collect_ignore_glob = [] if BENCHMARKS.is_dir() else ["test_*.py"]
