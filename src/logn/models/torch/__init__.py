"""PyTorch modules: record their logits, attach a correction, fold it into the weights."""
