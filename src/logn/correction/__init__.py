"""A model in, a corrected one out."""
