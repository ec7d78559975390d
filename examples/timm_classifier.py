"""Correct a timm classifier: equation 1 of the paper, no background.

Runs as it is, on a small model with random weights and random images:

    python examples/timm_classifier.py

For your own, make `model` by `timm.create_model("…", pretrained=True)` and `batches` from your training images.
"""

import timm
import torch

import logn


def main() -> None:
    torch.manual_seed(0)
    # A distilled transformer has two heads, whose logits are averaged: both take the same map.
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", num_classes=5, img_size=32, embed_dim=48, depth=1, num_heads=2
    ).eval()
    batches = [torch.rand(16, 3, 32, 32) for _ in range(4)]

    layer = logn.locate_logits(model)
    print(f"class logits: {', '.join(layer.paths)}")
    with torch.inference_mode(), logn.record(model, layer) as moments:
        for images in batches:
            model(images)
    affine = logn.logit_normalization(moments)

    with torch.inference_mode():
        with logn.attach(model, layer, affine):
            attached = model(batches[0])
        logn.fold(model, layer, affine)
        difference = (model(batches[0]) - attached).abs().max()
    print(f"largest difference of attached and folded: {difference:.1e}")


if __name__ == "__main__":
    main()
