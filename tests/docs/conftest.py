"""The documentation may not be beside the tests: then none of these is collected."""

from pathlib import Path

collect_ignore_glob = [] if (Path(__file__).parents[2] / "docs").exists() else ["test_*.py"]
