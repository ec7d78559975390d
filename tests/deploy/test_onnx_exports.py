"""Folding into real exports: the corrected file gives what the PyTorch model gives with the map on its logits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from logn.deploy.onnx_fold import fold_onnx

CLASSES = 6


class Body(nn.Module):
    """Features of an image, and a place for a map: what the folded file has to agree with."""

    affine = None

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)

    def corrected(self, logits, axis=-1):
        return logits if self.affine is None else self.affine(logits, axis=axis)


class Classifier(Body):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images):
        return self.corrected(self.head(self.stem(images).relu().mean((2, 3))))


class Transformer(Body):
    """A DETR-style head: tokens in, a softmax with a background behind, boxes beside it."""

    def __init__(self):
        super().__init__()
        self.query, self.head, self.boxes = nn.Linear(8, 16), nn.Linear(16, CLASSES), nn.Linear(16, 4)

    def forward(self, images):
        tokens = self.query(self.stem(images).flatten(2).transpose(1, 2)).relu()
        return self.corrected(self.head(tokens)).softmax(-1), self.boxes(tokens).sigmoid()


class Dense(Body):
    """Three anchors per place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(8, 3 * CLASSES, 3, padding=1, bias=False)

    def forward(self, images):
        maps = self.head(self.stem(images).relu())
        count, _, height, width = maps.shape
        anchors = maps.view(count, 3, CLASSES, height, width).permute(0, 3, 4, 1, 2).reshape(count, -1, CLASSES)
        return self.corrected(anchors).sigmoid()


class Cosine(Body):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, images):
        features = functional.normalize(self.stem(images).relu().mean((2, 3)))
        return self.corrected(20 * functional.linear(features, functional.normalize(self.weight))).softmax(-1)


class EndToEnd(Body):
    """The tail of an end-to-end YOLO: two levels, a sigmoid, then the best of all (place, class) pairs."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.boxes = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(2))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, CLASSES, 1), nn.SiLU(), nn.Conv2d(CLASSES, CLASSES, 1)) for _ in range(2)
        )

    def forward(self, images):
        levels = [self.stem(images).relu()]
        levels.append(self.down(levels[0]).relu())
        boxes = torch.cat([layer(level).flatten(2) for layer, level in zip(self.boxes, levels, strict=True)], 2)
        logits = torch.cat([layer(level).flatten(2) for layer, level in zip(self.heads, levels, strict=True)], 2)
        joined = torch.cat([boxes, self.corrected(logits, axis=1).sigmoid()], 1).permute(0, 2, 1)
        boxes, scores = joined.split([4, CLASSES], 2)
        places = scores.amax(2).topk(10)[1].unsqueeze(2)
        boxes, scores = boxes.gather(1, places.repeat(1, 1, 4)), scores.gather(1, places.repeat(1, 1, CLASSES))
        best, flat = scores.flatten(1).topk(10)
        chosen = boxes.gather(1, (flat // CLASSES).unsqueeze(2).repeat(1, 1, 4))
        return torch.cat([chosen, best.unsqueeze(2), (flat % CLASSES).unsqueeze(2).float()], 2)


class ManyHeads(Body):
    """Several heads of different width, since the newer exporter takes long to start."""

    def __init__(self):
        super().__init__()
        self.linear, self.query, self.tokens = nn.Linear(8, 5), nn.Linear(8, 16), nn.Linear(16, 7)
        self.dense = nn.Conv2d(8, 27, 3)
        self.cosine = nn.Parameter(torch.randn(8, 8))

    def forward(self, images):
        maps = self.stem(images).relu()
        pooled = maps.mean((2, 3))
        tokens = self.query(maps.flatten(2).transpose(1, 2)).relu()
        dense = self.dense(maps)
        dense = dense.view(dense.shape[0], 3, 9, -1).permute(0, 3, 1, 2).flatten(1, 2)
        cosine = 20 * functional.linear(functional.normalize(pooled), functional.normalize(self.cosine))
        logits = {5: self.linear(pooled), 7: self.tokens(tokens), 9: dense, 8: cosine}
        if self.affine is not None:
            logits[self.affine.num_columns] = self.affine(logits[self.affine.num_columns])
        return logits[5], logits[7].softmax(-1), logits[9].sigmoid(), logits[8].softmax(-1)


def build(kind):
    torch.manual_seed(0)
    return kind().eval()


@pytest.fixture
def check_agreement(outputs_of, interface):
    """The file before and after the fold gives what torch gives without and with the map; names and shapes stay."""

    def check(model, source, target, affine, images):
        for path, map_or_none in ((source, None), (target, affine)):
            model.affine = map_or_none
            with torch.inference_mode():
                expected = model(images)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for mine, theirs in zip(expected, outputs_of(path, images), strict=True):
                np.testing.assert_allclose(theirs, mine.numpy(), atol=1e-4, rtol=1e-4)
        assert interface(source) == interface(target)

    return check


@pytest.mark.parametrize(
    ("kind", "way", "background"),
    [
        (Classifier, "weights", None),
        (Transformer, "weights", -1),
        (Dense, "weights", None),
        (Cosine, "nodes", None),
        (EndToEnd, "weights", None),
    ],
)
def test_torchscript_exports(exported, map_of, check_agreement, tmp_path, kind, way, background):
    model, images = build(kind), torch.rand(2, 3, 16, 16)
    source = exported(kind.__name__, model, (images,))
    affine = map_of(CLASSES, background)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.way == way
    assert report.largest_difference < 1e-4
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)


def test_an_end_to_end_tail_by_the_newer_exporter(exported, map_of, check_agreement, tmp_path):
    model, images = build(EndToEnd), torch.rand(1, 3, 16, 16)
    source = exported("EndToEndDynamo", model, (images,), dynamo=True)
    affine = map_of(CLASSES)
    assert fold_onnx(source, affine, tmp_path / "out.onnx").way == "weights"
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)


@pytest.mark.parametrize(("head", "classes"), [("linear", 5), ("tokens", 7), ("dense", 9), ("cosine", 8)])
def test_dynamo_exports(exported, map_of, check_agreement, tmp_path, head, classes):
    model, images = build(ManyHeads), torch.rand(2, 3, 16, 16)
    source = exported("ManyHeads", model, (images,), dynamo=True)
    affine = map_of(classes)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.way == "weights"  # the cosine head too: this exporter stores the normalised weight
    assert report.largest_difference < 1e-4
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)
    assert (source.parent / "model.onnx.data").exists() == (tmp_path / "out.onnx.data").exists()
