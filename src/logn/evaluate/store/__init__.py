"""Proposals of a detector on disk, with all logits, and what writes them."""
