"""The detector of `logn demo`: trained on the demonstration's scenes, exported to one small ONNX file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import onnx
import torch
import typer
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image, nms, roi_align

from logn.base.files import atomic_path
from logn.demo.problem import SIDE, alphabet, draw_problem
from logn_research.training.detectors import TwoStageDetector
from logn_research.training.layers import NormedLinear
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import load_detector, train_detector

ITERATIONS = 2400
# Weights of fewer numbers stay in single precision; so does the class layer, which corrections are folded into.
_FEWEST_NUMBERS = 4096


class OneImageDetector(nn.Module):
    """The small two-stage detector for one image of a fixed size, in operations that ONNX has.

    The class layer is a plain linear one on unit features, the same numbers as the normalised layer.
    """

    anchors: Tensor

    def __init__(self, detector: TwoStageDetector) -> None:
        super().__init__()
        self.detector = detector.eval()
        heads = detector.roi_heads
        layer: NormedLinear = heads.box_predictor.cls_score
        unit = layer.weight / (layer.weight.norm(dim=1, keepdim=True) + layer.eps)
        self.class_layer = nn.Linear(layer.in_features, layer.out_features)
        self.class_layer.weight.data = (unit * layer.temperature[:, None]).detach()
        self.class_layer.bias.data = layer.bias.detach().clone()
        self.eps = layer.eps
        generator = detector.rpn.anchor_generator
        cells = SIDE // 8
        stride = [[torch.tensor(8), torch.tensor(8)]]
        (anchors,) = generator.grid_anchors([(cells, cells)], stride)
        self.register_buffer("anchors", anchors)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes `(1, N, 4)` in pixels and logits `(1, N, classes + 1)`, the background first."""
        detector = self.detector
        mean = torch.tensor(detector.transform.image_mean)[:, None, None]
        std = torch.tensor(detector.transform.image_std)[:, None, None]
        features = detector.backbone((image - mean) / std)
        regions = self._regions(features["1"])
        pooled = roi_align(features["0"], [regions], 7, spatial_scale=0.25, sampling_ratio=1, aligned=True)
        vectors = detector.roi_heads.box_head(pooled)
        offsets = detector.roi_heads.box_predictor.bbox_pred(vectors)
        boxes = detector.roi_heads.box_coder.decode_single(offsets, regions)
        logits = self.class_layer(vectors / (vectors.norm(dim=1, keepdim=True) + self.eps))
        return clip_boxes_to_image(boxes, (SIDE, SIDE))[None], logits[None]

    def _regions(self, level: Tensor) -> Tensor:
        """The proposals, best first."""
        rpn = self.detector.rpn
        objectness, deltas = rpn.head([level])
        scores, offsets = concat_box_prediction_layers(objectness, deltas)
        boxes = rpn.box_coder.decode_single(offsets, self.anchors)
        best = scores[:, 0].topk(rpn._pre_nms_top_n["testing"]).indices
        boxes = clip_boxes_to_image(boxes[best], (SIDE, SIDE))
        kept = nms(boxes, scores[best, 0], rpn.nms_thresh)
        regions: Tensor = boxes[kept[: rpn._post_nms_top_n["testing"]]]
        return regions


def export_detector(detector: TwoStageDetector, path: str | os.PathLike[str]) -> None:
    """Write the detector as an ONNX file that says how images are prepared and what its columns are.

    Args:
        detector: The small two-stage detector with a normalised class layer.
        path: The file.
    """
    model = OneImageDetector(detector)
    target = Path(path)
    with atomic_path(target) as temporary:
        torch.onnx.export(
            model,
            (torch.rand(1, 3, SIDE, SIDE),),
            str(temporary),
            input_names=["image"],
            output_names=["boxes", "logits"],
            dynamic_axes={"boxes": {1: "regions"}, "logits": {1: "regions"}},
            opset_version=17,
            dynamo=False,
        )
        graph = onnx.load(str(temporary))
        _halve_weights(graph, keep={"class_layer.weight"})
        metadata = {
            "class_names": json.dumps(list(alphabet().names)),
            "preprocessing": json.dumps({"size": [SIDE, SIDE], "resize": "stretch", "max_value": 1.0}),
            "activation": "softmax",
            "background": "first",
            "description": "LogN's glyph detector; python -m logn_research.demo_detector makes it again",
        }
        for key, value in metadata.items():
            graph.metadata_props.add(key=key, value=value)
        onnx.save(graph, str(temporary))


def _halve_weights(model: onnx.ModelProto, keep: set[str]) -> None:
    """Store large weights in half precision; a cast in the graph makes them single again."""
    casts = []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < _FEWEST_NUMBERS or tensor.name in keep:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype("float16"), f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    for node in reversed(casts):
        model.graph.node.insert(0, node)


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file.")],
    folder: Annotated[Path, typer.Option(help="Data and training go here; both resume.")] = Path("runs/demo-detector"),
    iterations: int = ITERATIONS,
) -> None:
    """Draw the demonstration's scenes, train the detector with the paper's normalised class layer, export it."""
    train_and_export(folder, output, iterations)


def train_and_export(folder: Path, output: Path, iterations: int = ITERATIONS) -> None:
    """Train the detector of the demonstration and write its ONNX file.

    Args:
        folder: Data and training go here; both resume.
        output: The ONNX file.
        iterations: Of 16 images each.
    """
    data = draw_problem(folder / "data")
    config = DetectorTrainingConfig(data, folder / "model", iterations=iterations, classifier="cosine", seed=0)
    train_detector(config, processes=2)
    detector = load_detector(folder / "model")
    assert isinstance(detector, TwoStageDetector)  # noqa: S101 - for type checkers
    export_detector(detector, output)


if __name__ == "__main__":
    typer.run(main)
