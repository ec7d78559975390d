"""Folding into real exports: the corrected file gives what the PyTorch model gives with the map on its logits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from logn.models.onnx.fold import fold_onnx

CLASSES = 6


class ManyHeads(nn.Module):
    """Heads of different widths in one model, since an exporter takes long to start; and a place for a map."""

    affine = None

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.linear, self.query, self.tokens = nn.Linear(8, 5), nn.Linear(8, 16), nn.Linear(16, 7)
        self.dense, self.boxes = nn.Conv2d(8, 27, 3, bias=False), nn.Linear(16, 4)
        self.cosine = nn.Parameter(torch.randn(8, 8))

    def forward(self, images):
        maps = self.stem(images).relu()
        pooled = maps.mean((2, 3))
        tokens = self.query(maps.flatten(2).transpose(1, 2)).relu()
        dense = self.dense(maps)  # three anchors per place
        dense = dense.view(dense.shape[0], 3, 9, -1).permute(0, 3, 1, 2).flatten(1, 2)
        cosine = 20 * functional.linear(functional.normalize(pooled), functional.normalize(self.cosine))
        logits = {5: self.linear(pooled), 7: self.tokens(tokens), 9: dense, 8: cosine}
        if self.affine is not None:
            logits[self.affine.num_columns] = self.affine(logits[self.affine.num_columns])
        boxes = self.boxes(tokens).sigmoid()
        return logits[5], logits[7].softmax(-1), logits[9].sigmoid(), logits[8].softmax(-1), boxes


class EndToEnd(nn.Module):
    """The tail of an end-to-end YOLO: two levels, a sigmoid, then the best of all (place, class) pairs."""

    affine = None

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.boxes = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(2))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, CLASSES, 1), nn.SiLU(), nn.Conv2d(CLASSES, CLASSES, 1)) for _ in range(2)
        )

    def forward(self, images):
        levels = [self.stem(images).relu()]
        levels.append(self.down(levels[0]).relu())
        boxes = torch.cat([layer(level).flatten(2) for layer, level in zip(self.boxes, levels, strict=True)], 2)
        logits = torch.cat([layer(level).flatten(2) for layer, level in zip(self.heads, levels, strict=True)], 2)
        logits = logits if self.affine is None else self.affine(logits, axis=1)
        boxes, scores = torch.cat([boxes, logits.sigmoid()], 1).permute(0, 2, 1).split([4, CLASSES], 2)
        places = scores.amax(2).topk(10)[1].unsqueeze(2)
        boxes, scores = boxes.gather(1, places.repeat(1, 1, 4)), scores.gather(1, places.repeat(1, 1, CLASSES))
        best, flat = scores.flatten(1).topk(10)
        chosen = boxes.gather(1, (flat // CLASSES).unsqueeze(2).repeat(1, 1, 4))
        return torch.cat([chosen, best.unsqueeze(2), (flat % CLASSES).unsqueeze(2).float()], 2)


@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
@pytest.mark.parametrize(
    ("kind", "classes", "background"),
    [
        (ManyHeads, 5, None),
        (ManyHeads, 7, -1),
        (ManyHeads, 9, None),
        (ManyHeads, 8, None),  # the newer exporter stores the normalised weight of a cosine
        (EndToEnd, CLASSES, None),
    ],
    ids=["linear", "tokens", "dense", "cosine", "end to end"],
)
def test_the_file_gives_what_torch_gives_with_the_map(
    exported, map_of, outputs_of, interface, tmp_path, kind, classes, background, dynamo
):
    torch.manual_seed(0)
    model, images, target = kind().eval(), torch.rand(2 - dynamo, 3, 16, 16), tmp_path / "out.onnx"
    source = exported(f"{kind.__name__}{dynamo}", model, (images,), dynamo=dynamo)
    affine = map_of(classes, background)
    report = fold_onnx(source, affine, target)
    assert report.largest_difference < 1e-4
    for path, map_or_none in ((source, None), (target, affine)):
        model.affine = map_or_none
        with torch.inference_mode():
            expected = model(images)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for mine, theirs in zip(expected, outputs_of(path, images), strict=True):
            np.testing.assert_allclose(theirs, mine.numpy(), atol=1e-4, rtol=1e-4)
    assert interface(source) == interface(target)
    assert (source.parent / "model.onnx.data").exists() == (tmp_path / "out.onnx.data").exists()
