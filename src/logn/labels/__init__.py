"""Where labels of detection are, in which form, and how each form is read."""
