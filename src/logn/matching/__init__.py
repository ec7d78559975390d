"""Detections matched to labelled objects."""
