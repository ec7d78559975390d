"""What has no subject of its own: files, JSON, text, arrays, boxes, processes."""
