"""The class mix of a deployment, estimated from its logits without labels."""
