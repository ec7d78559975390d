"""What others left on disk: labels, class names and counts, files of logits, images."""
