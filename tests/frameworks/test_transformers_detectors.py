"""Detectors of transformers as a source of proposals: what is decoded from them is what transformers itself gives."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from logn.deploy.fold import fold
from logn.errors import InputError
from logn.evaluate.models.transformers import TransformersDetector
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

EDGES = {"shortest_edge": 64, "longest_edge": 96}
SQUARE = {"height": 64, "width": 64}
# The image processor that transformers itself has for each model.
PROCESSORS = {
    "detr": ("DetrImageProcessor", EDGES),
    "table_transformer": ("DetrImageProcessor", EDGES),
    "detr_panoptic": ("DetrImageProcessor", EDGES),
    "conditional_detr": ("ConditionalDetrImageProcessor", EDGES),
    "dab_detr": ("ConditionalDetrImageProcessor", EDGES),
    "deformable_detr": ("DeformableDetrImageProcessor", EDGES),
    "deformable_detr_two_stage": ("DeformableDetrImageProcessor", EDGES),
    "lw_detr": ("DeformableDetrImageProcessor", SQUARE),
    "yolos": ("YolosImageProcessor", EDGES),
    "rt_detr": ("RTDetrImageProcessor", SQUARE),
    "rt_detr_v2": ("RTDetrImageProcessor", SQUARE),
    "d_fine": ("RTDetrImageProcessor", SQUARE),
    "deimv2": ("RTDetrImageProcessor", SQUARE),
    "rf_detr": ("RfDetrImageProcessor", SQUARE),
    "rf_detr_with_masks": ("RfDetrImageProcessor", SQUARE),
    "pp_doclayout_v2": ("PPDocLayoutV2ImageProcessor", SQUARE),
    "pp_doclayout_v3": ("PPDocLayoutV3ImageProcessor", SQUARE),
    "pp_doclayout_v4": ("PPDocLayoutV4ImageProcessor", SQUARE),
}
WITH_QUALITY = ("d_fine", "deimv2")


@pytest.fixture
def build(models_of, spread):
    small = models_of("test_transformers_models.py")

    def make(name):
        model = small["make"](name, spread)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                # Queries that differ and classes that are sure of themselves, as after training.
                if ("query" in path and path.endswith("embeddings.weight")) or path.endswith("detection_tokens"):
                    parameter.normal_(std=3)
                if "lqe_layers" in path:
                    parameter.normal_(std=0.3)  # zero before training
            for module in find_modules(model, locate_logits(model)):
                module.bias.mul_(3).add_(2)
        kind, size = PROCESSORS[name]
        return model, getattr(hf, kind)(size=size)

    return make


def own_detections(model, processor):
    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        with torch.inference_mode():
            output = model(**processor(images=picture, return_tensors="pt"))
        result = processor.post_process_object_detection(output, target_sizes=[tuple(image.shape[-2:])])[0]
        return result["boxes"], result["scores"], result["labels"]

    return own


@pytest.mark.parametrize("name", PROCESSORS)
def test_decoded_proposals_are_the_detections_of_transformers(name, build, same_detections, pictures):
    model, processor = build(name)
    same_detections(TransformersDetector(model, processor), pictures, own_detections(model, processor))


@pytest.mark.parametrize("name", ["detr", "rt_detr", "d_fine"])
def test_the_logits_are_those_of_the_class_layer(name, build, pictures):
    """Also where the model adds a quality to them: what is recorded, corrected and folded is without it."""
    model, processor = build(name)
    detector = TransformersDetector(model, processor)
    seen = []
    (module,) = find_modules(model, detector.logit_layer)
    handle = module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    (found,) = detector.propose(pictures[:1])
    handle.remove()
    np.testing.assert_array_equal(found.logits, seen[-1][0].detach())
    assert (found.objectness is not None) == (name in WITH_QUALITY)
    assert (detector.background, detector.activation) == ((-1, "softmax") if name == "detr" else (None, "sigmoid"))


@pytest.mark.parametrize("name", ["d_fine", "yolos"])
def test_a_corrected_store_is_the_folded_model(name, build, pictures, class_map, tmp_path):
    model, processor = build(name)
    detector = TransformersDetector(model, processor)
    affine = class_map(detector.num_classes + (detector.background is not None), detector.background)
    mapped = [
        replace(proposals, logits=affine(proposals.logits.astype(np.float64)))
        for proposals in detector.propose(pictures)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was tied to ")
        fold(model, detector.logit_layer, affine)
    for expected, found in zip(mapped, TransformersDetector(model, processor).propose(pictures), strict=True):
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-4)
        if expected.objectness is not None:
            assert np.abs(expected.objectness).max() > 1e-2
            np.testing.assert_allclose(found.objectness, expected.objectness, atol=1e-4)


def test_an_image_gives_the_same_alone_and_in_a_batch(build, pictures):
    """YOLOS has no mask for padding, so an image that is padded to the size of another one gets other boxes."""
    detector = TransformersDetector(*build("yolos"))
    together = detector.propose(pictures)
    for image, found in zip(pictures, together, strict=True):
        (alone,) = detector.propose([image])
        np.testing.assert_allclose(found.boxes, alone.boxes, atol=1e-4)
        np.testing.assert_allclose(found.logits, alone.logits, atol=1e-5)


def test_masks_without_boxes_and_other_models_are_refused(models_of, build):
    small = models_of("test_transformers_models.py")
    model, processor = build("detr")
    config = hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    classifier = hf.ViTForImageClassification(config)
    with pytest.raises(InputError, match=r"`model` to be a detector of transformers .*, but got ViTForImageClass"):
        TransformersDetector(classifier, processor)
    with pytest.raises(InputError, match=r"`model` to give boxes, but Mask2FormerForUniversalSegmentation gives none"):
        TransformersDetector(small["mask2former"](), processor).propose([torch.zeros(3, 64, 64)])
    with pytest.raises(InputError, match=r"`processor` to be the image processor of a detector.* but got dict"):
        TransformersDetector(model, {})
