"""What is known of the classes besides logits: names, training counts, fractal dimensions."""
