"""Metrics of image classifiers: truth, outcomes per row, groups, intervals."""
