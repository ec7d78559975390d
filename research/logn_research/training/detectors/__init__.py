"""Detectors that can be trained here."""
