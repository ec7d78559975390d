"""Classes apart from their logits: names, training counts, fractal dimensions."""
