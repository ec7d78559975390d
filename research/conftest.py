"""Modules of frameworks that this environment lacks are not collected."""

from importlib.util import find_spec

needs_mmdet = ["logn_research/mmdetection.py", "logn_research/mmdetection_statistics.py", "tests/mmdet"]
collect_ignore = [] if find_spec("mmdet") else needs_mmdet
