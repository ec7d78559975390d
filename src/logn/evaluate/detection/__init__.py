"""Metrics of detections: ground truth, matching, AP, errors, intervals."""
