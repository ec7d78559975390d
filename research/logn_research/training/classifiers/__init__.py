"""Image classifiers that can be trained here."""
