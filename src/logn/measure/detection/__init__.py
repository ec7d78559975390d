"""Detectors: AP, intervals, kinds of errors."""
