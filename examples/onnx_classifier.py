"""Correct a classifier of which only the ONNX file is left: the code of docs/how-to/onnx.md, on images made here."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image
from torch import nn

import logn

CLASSES, SIZE = 10, 12
folder = Path(tempfile.mkdtemp())
torch.manual_seed(0)
patterns = torch.rand(CLASSES, 3, SIZE, SIZE)


def draw(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures of each class's pattern, as whole numbers from 0 to 255."""
    labels = torch.repeat_interleave(torch.arange(CLASSES), counts)
    noisy = patterns[labels] + 0.9 * torch.randn(len(labels), 3, SIZE, SIZE)
    return (noisy.clamp(0, 1) * 255).round().to(torch.uint8), labels


# From 1,000 examples of the most frequent class down to 5 of the rarest; the test set holds every class equally often.
counts = torch.logspace(3.0, 0.7, CLASSES).long()
images, labels = draw(counts)
test_images, test_labels = draw(torch.full((CLASSES,), 100))

# --- somebody trains a model, exports it and goes away
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 32), nn.ReLU(), nn.Linear(32, CLASSES), nn.Softmax(-1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(8):
    for batch in torch.randperm(len(labels)).split(64):
        optimizer.zero_grad()
        logits = model[:-1]((images[batch] / 255.0 - 0.5) / 0.25)
        nn.functional.cross_entropy(logits, labels[batch]).backward()
        optimizer.step()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    example = torch.rand(1, 3, SIZE, SIZE)
    names = {"input_names": ["images"], "output_names": ["scores"], "dynamic_axes": {"images": {0: "batch"}}}
    torch.onnx.export(model.eval(), (example,), str(folder / "model.onnx"), dynamo=False, **names)
(folder / "train").mkdir()
for index in torch.randperm(len(labels))[:500].tolist():
    Image.fromarray(images[index].permute(1, 2, 0).numpy()).save(folder / "train" / f"{index}.png")

# --- run it once over training images, without labels
preprocessing = logn.Preprocessing(mean=(0.5,), std=(0.25,))
moments = logn.record_onnx(folder / "model.onnx", folder / "train", preprocessing, batch_size=50)
moments.save(folder / "stats.safetensors")

# --- and write the correction into the file
affine = logn.recommend(moments).fit(moments)  # what is recommended for such a model; `logn fit` does the same
report = logn.fold_onnx(folder / "model.onnx", affine, folder / "corrected.onnx")

print(f"The map is two nodes behind {report.tensors[0]}, off by {report.largest_difference:.1e} at most.")


def accuracy(path: Path) -> str:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = ((test_images.numpy() / 255.0 - 0.5) / 0.25).astype(np.float32)
    (scores,) = session.run(["scores"], {"images": inputs})
    right = scores.argmax(axis=1) == test_labels.numpy()
    rare = (counts <= 20).numpy()[test_labels.numpy()]
    return f"all {right.mean():.3f}  rare {right[rare].mean():.3f}"


before, after = accuracy(folder / "model.onnx"), accuracy(folder / "corrected.onnx")
print("before   ", before)
print("corrected", after)
