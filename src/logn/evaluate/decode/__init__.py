"""From proposals and a map of logits to detections."""
