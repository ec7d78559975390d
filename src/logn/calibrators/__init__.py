"""Post-hoc methods, each a function that returns one per-class affine map of the logits."""
