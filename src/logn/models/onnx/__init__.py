"""ONNX files: find the logits in the graph, run it, fold a correction into it."""
