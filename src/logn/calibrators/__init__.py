"""Corrections of trained models: one affine map per class, the methods that make it, and which to take."""
