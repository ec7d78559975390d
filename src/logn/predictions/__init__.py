"""Boxes and logits on disk, and how they become detections."""
