"""Operating points: a threshold per class, chosen on labelled images, and folded into the model."""
