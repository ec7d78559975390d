"""A long-tailed detection problem that is drawn, a detector trained on it, and the demonstration that corrects it."""
