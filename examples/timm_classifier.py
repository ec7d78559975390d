"""Correct a timm classifier: attach the map, take it off, fold it in.

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
    calibration = logn.calibrate(model, batches)
    with torch.inference_mode():
        attached = model(batches[0])

    calibration.handle.remove()
    logn.fold(model, layer, calibration.affine)
    with torch.inference_mode():
        difference = (model(batches[0]) - attached).abs().max()
    print(f"largest difference of attached and folded: {difference:.1e}")


if __name__ == "__main__":
    main()
