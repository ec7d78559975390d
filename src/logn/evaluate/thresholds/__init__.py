"""Score thresholds: one per class, chosen on labelled images or given, and folded into the model."""
