"""Per-class statistics of the logits: exact, streaming, mergeable."""
