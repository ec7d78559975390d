"""Where each framework keeps its class logits; nothing of a framework is imported."""
