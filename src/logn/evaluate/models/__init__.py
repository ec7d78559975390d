"""Detectors of other frameworks as sources of proposals with all logits: one file each."""
