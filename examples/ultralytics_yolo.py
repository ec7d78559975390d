"""Correct an Ultralytics YOLO: every level, both heads, before `fuse()`.

Runs as it is, on a model with random weights and random images:

    python examples/ultralytics_yolo.py

For your own, make `yolo` by `YOLO("best.pt")` and `batches` from your training images (RGB, 0 to 1, sides of 32 n).
"""

import torch
from ultralytics import YOLO

import logn


def main() -> None:
    torch.manual_seed(0)
    yolo = YOLO("yolo26n.yaml")
    # `YOLO(...)` is a front end, whose call predicts and whose `train` trains: the network itself is `yolo.model`.
    model = yolo.model.eval()
    batches = [torch.rand(2, 3, 64, 64) for _ in range(4)]

    layer = logn.locate_logits(model)
    print(f"class logits: {len(layer.paths)} convolutions in {layer.num_stages} heads")
    maps = logn.calibrate(model, batches, fold=True).affine
    print(f"folded in {len(maps)} maps of {maps[0].num_columns} classes")

    # From here on everything is as before: yolo.val(...), yolo.export(...), yolo.save("corrected.pt").
    with torch.inference_mode():
        before = model(batches[0])[0]
        difference = (model.fuse(verbose=False)(batches[0])[0] - before).abs().max()
    print(f"largest difference after fuse(): {difference:.1e}")


if __name__ == "__main__":
    main()
