"""Glyph scenes and glyph classes: long-tailed data drawn here."""
