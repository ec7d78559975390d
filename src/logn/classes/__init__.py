"""What is known about the classes apart from logits: names, training counts, fractal dimensions."""
