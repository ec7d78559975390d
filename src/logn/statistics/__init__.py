"""Per-class statistics of the logits: streaming, in float64, mergeable to rounding."""
