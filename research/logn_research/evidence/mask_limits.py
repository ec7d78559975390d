"""What limits the masks of drawn detectors: how well a true mask survives each step, before anything is learnt.

As a command: `python -m logn_research.evidence.mask_limits glyphs/test.json`.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional
from torchvision.ops import roi_align

from logn.data.masks import paste_mask
from logn_research.datasets.sample_dataset import SampleDataset

IMAGES, SIDE = 60, 28  # of the data set; of a predicted mask
OVERLAPS = np.linspace(0.5, 0.95, 10)
# A cell of a coarse map belongs to the object where this share of it does; the best is taken for each object.
SHARES = (0.25, 0.35, 0.5)


def main() -> None:
    """Print, for each way of keeping a mask, its mean overlap with the true one and the share above 0.5 to 0.95."""
    dataset = SampleDataset(sys.argv[1])
    found: dict[str, list[float]] = {}
    for index in range(min(IMAGES, len(dataset))):
        sample = dataset[index]
        for mask, box in zip(sample.masks(), sample.boxes.astype(np.float32), strict=True):
            whole = torch.from_numpy(mask.astype(np.float32))[None, None]
            region = torch.tensor([[0.0, *box.tolist()]])
            kept = {f"mask of {SIDE} x {SIDE}": [roi_align(whole, region, SIDE, 1.0, -1, True)[0, 0].numpy()]}
            for stride in (2, 4, 8):
                pooled = roi_align(functional.avg_pool2d(whole, stride), region, SIDE // 2, 1 / stride, 2, True)
                coarse = functional.interpolate(pooled, scale_factor=2.0, mode="bilinear")[0, 0].numpy()
                kept[f"cells of {stride} pixels"] = [(coarse > share).astype(np.float32) for share in SHARES]
            kept["the whole box"] = [np.ones((SIDE, SIDE), np.float32)]
            for name, forms in kept.items():
                pasted = [paste_mask(form, box, *mask.shape) for form in forms]
                overlaps = [(one & mask).sum() / max(1, (one | mask).sum()) for one in pasted]
                found.setdefault(name, []).append(max(overlaps))
    for name, values in found.items():
        above = np.mean([np.mean(np.array(values) >= overlap) for overlap in OVERLAPS])
        print(f"{name}: {np.mean(values):.2f} mean overlap, {above:.0%} at 0.5 to 0.95, {len(values)} objects")


if __name__ == "__main__":
    main()
