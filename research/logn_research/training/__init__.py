"""Detectors, heads and the training loop."""
