"""Figures and pages; nothing here computes, it only draws."""
