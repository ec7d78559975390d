"""Long-tailed data: LVIS and COCO annotation files, the embedded glyph scenes, samplers."""
