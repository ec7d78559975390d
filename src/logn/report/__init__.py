"""Figures and pages: they read what a comparison holds, and draw it."""
