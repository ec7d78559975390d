"""Correct a Hugging Face detector: collect its logits over training images, fold the map in, save and load.

Runs as it is, on a small model with random weights and random images:

    python examples/transformers_detector.py

For your own, make `model` by `AutoModelForObjectDetection.from_pretrained("…")` and `batches` by its image processor.
"""

import tempfile

import torch
import transformers

import logn


def small_rt_detr() -> transformers.RTDetrForObjectDetection:
    widths = [8, 8, 16, 16]
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=widths,
        depths=[1] * 4,
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=16,
        encoder_in_channels=widths[1:],
        encoder_ffn_dim=16,
        encoder_attention_heads=2,
        d_model=16,
        num_queries=10,
        decoder_in_channels=[16] * 3,
        decoder_ffn_dim=16,
        decoder_layers=2,
        decoder_attention_heads=2,
        num_denoising=0,
        num_labels=5,
    )
    return transformers.RTDetrForObjectDetection(config)


def main() -> None:
    torch.manual_seed(0)
    model = small_rt_detr().eval()
    batches = [{"pixel_values": torch.rand(2, 3, 64, 64)} for _ in range(4)]

    layer = logn.locate_logits(model)
    print(f"class logits: {layer.path}, background {layer.background}, {layer.activation}")
    affine = logn.calibrate(model, batches, fold=True).affine
    print(f"folded in a map of {affine.num_columns} classes")

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model.save_pretrained(folder)
        loaded = transformers.RTDetrForObjectDetection.from_pretrained(folder).eval()
        difference = (loaded(**batches[0]).logits - model(**batches[0]).logits).abs().max()
    print(f"largest difference after saving and loading: {difference:.1e}")


if __name__ == "__main__":
    main()
