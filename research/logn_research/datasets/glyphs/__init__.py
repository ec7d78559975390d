"""Glyph scenes: long-tailed data drawn here."""
