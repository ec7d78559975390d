"""Class logits in ONNX files: the graph, its layers, and running it."""
