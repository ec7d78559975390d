"""From logits to detections to numbers, for any number of methods on the same proposals."""
