"""Strong detectors in minutes: long-tailed heads on the frozen features of a public detector.

`features` runs a public ONNX detector once and keeps proposals and RoI features, `heads` trains class heads on them
with long-tailed labels, and `measure` compares post-hoc methods on the heads' logits. Each step resumes.
"""
