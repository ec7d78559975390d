"""Where the class logits come from: layers of models, proposals of detectors, shards on disk."""
