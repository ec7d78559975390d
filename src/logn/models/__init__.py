"""Any model as one object: where its logits are, how it runs, how a correction is written into it."""
