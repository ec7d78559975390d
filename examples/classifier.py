"""Correct a classifier: the code of docs/how-to/pytorch.md, on a long-tailed problem made here."""

from __future__ import annotations

import torch
from torch import nn

import logn

CLASSES, FEATURES = 30, 16
torch.manual_seed(0)
centres = torch.randn(CLASSES, FEATURES)


def draw(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.repeat_interleave(torch.arange(CLASSES), counts)
    return centres[labels] + 1.1 * torch.randn(len(labels), FEATURES), labels


# From 1,000 examples of the most frequent class down to 5 of the rarest; the test set holds every class equally often.
counts = torch.logspace(3.0, 0.7, CLASSES).long()
features, labels = draw(counts)
test_features, test_labels = draw(torch.full((CLASSES,), 200))

model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(30):
    for batch in torch.randperm(len(labels)).split(128):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[batch]), labels[batch]).backward()
        optimizer.step()


@torch.inference_mode()
def accuracy() -> str:
    right = (model(test_features).argmax(dim=1) == test_labels).float()
    parts = {"frequent": counts > 100, "medium": (counts > 20) & (counts <= 100), "rare": counts <= 20}
    shares = {name: float(right[part[test_labels]].mean()) for name, part in parts.items()}
    return f"all {float(right.mean()):.3f}  " + "  ".join(f"{name} {share:.3f}" for name, share in shares.items())


loader = features.split(256)
print("before    ", accuracy())

# --- in one call
calibration = logn.calibrate(model, loader)

print("corrected ", accuracy())
calibration.handle.remove()

# --- step by step
model.eval()
layer = logn.locate_logits(model)
with logn.record(model, layer) as moments, torch.inference_mode():
    for images in loader:
        model(images)
affine = logn.recommend(moments).fit(moments)
logn.fold(model, layer, affine)

print("folded    ", accuracy())
