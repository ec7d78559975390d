"""Correct a torchvision detector: the code of docs/how-to/pytorch.md, on random weights and random images."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import logn

# Stand-ins for your trained detector and for a loader of your training images.
torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=96)
loader = [[torch.rand(3, 96, 128), torch.rand(3, 120, 96)] for _ in range(3)]
folder = Path(tempfile.mkdtemp())
untouched = copy.deepcopy(model)

# --- in one call
calibration = logn.calibrate(model, loader, progress=True)

# --- take it off
calibration.handle.remove()

# --- step by step
model.eval()
layer = logn.locate_logits(model)
with logn.record(model, layer) as moments, torch.inference_mode():
    for images in loader:
        model(images)
affine = logn.recommend(moments).fit(moments)
logn.fold(model, layer, affine)

# --- thresholds
model.roi_heads.score_thresh = 1e-4
model.roi_heads.detections_per_img = 300

# --- save
torch.save(model.state_dict(), folder / "corrected.pt")

# --- keep the parts
moments.save(folder / "statistics.safetensors")
affine.save(folder / "affine.safetensors")

# --- by hand
layer = logn.LogitLayer("roi_heads.box_predictor.cls_score", background=0, activation="softmax")

# --- what a script may check: the corrected file loads into a plain detector of the same kind.
untouched.load_state_dict(torch.load(folder / "corrected.pt", weights_only=True))
print(f"{layer.name}: {int(moments.count[0])} proposals, logit means {moments.mean.round(3).tolist()}")
