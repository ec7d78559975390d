"""Tiny random detectors and segmenters of Hugging Face: their logits, what folding leaves alone, their detections."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from logn.correction.calibrate import calibrate
from logn.errors import InputError
from logn.methods.logit_normalization import logit_normalization
from logn.models.frameworks.transformers import TransformersDetector
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
from logn.models.torch.fold import fold
from logn.models.torch.record import record

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

LABELS = 5
WIDTHS = [8, 8, 16, 16]
LEVELS = ["stage2", "stage3", "stage4"]
ALL_LEVELS = ["stage1", *LEVELS]
CONVOLUTIONS = {"embedding_size": 8, "hidden_sizes": WIDTHS, "depths": [1] * 4}
BLOCKS = {"hidden_size": 16, "num_attention_heads": 2}


def build(name, task="ObjectDetection", **options):
    return getattr(hf, f"{name}For{task}")(getattr(hf, f"{name}Config")(num_labels=LABELS, **options))


def detr(*levels, width=16, width_name="d_model", **options):
    backbone = hf.ResNetConfig(**CONVOLUTIONS, layer_type="basic", out_features=[*levels] or LEVELS)
    none = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes = {"encoder_layers": 1, "decoder_layers": 3, "num_queries": 6, width_name: width}
    return {"backbone_config": backbone, **none, **heads, **sizes, **options}


def deformable_detr(**options):
    # Its group normalisation needs 32 channels.
    return build("DeformableDetr", **detr(width=32, num_feature_levels=3, **options))


TWO_STAGES = {"with_box_refine": True, "two_stage": True, "two_stage_num_proposals": 6}


def rt_detr(backbone=None, width_name="d_model", **options):
    backbone = backbone or hf.RTDetrResNetConfig(**CONVOLUTIONS, layer_type="basic", out_features=LEVELS)
    encoder = {"encoder_layers": 1, "encoder_ffn_dim": 16, "encoder_attention_heads": 2, "encoder_hidden_dim": 16}
    decoder = {"decoder_layers": 3, "decoder_ffn_dim": 16, "decoder_attention_heads": 2, "decoder_n_points": 2}
    levels = {"encoder_in_channels": WIDTHS[1:], "decoder_in_channels": [16] * 3, "feat_strides": [8, 16, 32]}
    sizes = {width_name: 16, "num_queries": 6, "num_feature_levels": 3, "num_denoising": 0}
    return {"backbone_config": backbone, **encoder, **decoder, **levels, **sizes, **options}


def hgnet(levels=LEVELS):
    channels = {"stem_channels": [3, 4, 8], "stage_in_channels": [8, 8, 8, 16], "stage_mid_channels": [4] * 4}
    blocks = {"stage_num_blocks": [1] * 4, "stage_numb_of_layers": [1] * 4, "stage_kernel_size": [3] * 4}
    steps = {"stage_downsample": [False, True, True, True], "stage_light_block": [False] * 4}
    options = {**channels, **blocks, **steps, "stage_out_channels": WIDTHS, "out_features": levels}
    return hf.HGNetV2Config(**CONVOLUTIONS, **options)


def d_fine():
    return rt_detr(hgnet(), decoder_n_points=[2] * 3)


def yolos():
    sizes = {"num_hidden_layers": 1, "intermediate_size": 16, "num_detection_tokens": 6}
    return build("Yolos", **BLOCKS, **sizes, image_size=[64, 64], patch_size=16)


def few_queries(backbone, **options):
    heads = {"decoder_self_attention_heads": 2, "decoder_cross_attention_heads": 2, "decoder_ffn_dim": 16}
    sizes = {"d_model": 16, "decoder_layers": 2, "num_queries": 6, "group_detr": 2}
    return {"backbone_config": backbone, **heads, **sizes, **options}


def lw_detr():
    windows = {"num_windows": 4, "window_block_indices": [0], "out_indices": [1], "out_features": None}
    sizes = {"num_hidden_layers": 2, "image_size": 64, "patch_size": 16, "pretrain_image_size": 64}
    backbone = hf.LwDetrViTConfig(**BLOCKS, **sizes, **windows)
    return build("LwDetr", **few_queries(backbone, projector_scale_factors=[1.0]))


def rf_detr(task="ObjectDetection"):
    sizes = {"num_hidden_layers": 2, "image_size": 64, "patch_size": 16, "num_windows": 2}
    backbone = hf.RfDetrDinov2Config(**BLOCKS, **sizes, out_features=["stage1", "stage2"])
    return build("RfDetr", task, **few_queries(backbone, intermediate_size=16))


def swin():
    sizes = {"image_size": 64, "embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2}
    return hf.SwinConfig(**sizes, out_features=ALL_LEVELS)


def maskformer(use_auxiliary_loss=False):
    decoder = hf.DetrConfig(**detr("stage4", width=32, num_labels=LABELS))
    options = {"fpn_feature_size": 32, "mask_feature_size": 32, "use_auxiliary_loss": use_auxiliary_loss}
    return build("MaskFormer", "InstanceSegmentation", backbone_config=swin(), decoder_config=decoder, **options)


def masks(name, **options):
    # The group normalisation needs 32 channels.
    sizes = {"hidden_dim": 32, "encoder_feedforward_dim": 16, "encoder_layers": 1, "num_attention_heads": 2}
    options |= {"dim_feedforward": 16, "num_queries": 6}
    return build(name, "UniversalSegmentation", backbone_config=swin(), **sizes, **options)


def mask2former():
    return masks("Mask2Former", feature_size=32, mask_feature_size=32, decoder_layers=4)


def panoptic():
    # The group normalisation of its masks needs the width.
    return build("Detr", "Segmentation", **detr(*ALL_LEVELS, width=128, encoder_attention_heads=8))


# model, path, background, what is recorded of the layer's output
LAST = "model.decoder.class_embed.2"
MODELS = {
    "detr": (lambda: build("Detr", **detr("stage4")), "class_labels_classifier", -1, None),
    "conditional_detr": (lambda: build("ConditionalDetr", **detr("stage4")), "class_labels_classifier", None, None),
    "deformable_detr": (deformable_detr, "class_embed.2", None, None),
    "deformable_detr_refined": (lambda: deformable_detr(with_box_refine=True), "class_embed.2", None, None),
    "deformable_detr_two_stage": (lambda: deformable_detr(**TWO_STAGES), "class_embed.2", None, None),
    "deformable_detr_untied": (
        *(lambda: deformable_detr(**TWO_STAGES, tie_word_embeddings=False), "class_embed.2", None, None),
    ),
    "rt_detr": (lambda: build("RTDetr", **rt_detr()), LAST, None, None),
    "rt_detr_v2": (lambda: build("RTDetrV2", **rt_detr()), LAST, None, None),
    "d_fine": (lambda: build("DFine", **d_fine()), LAST, None, None),
    "deimv2": (lambda: build("Deimv2", **d_fine()), LAST, None, None),
    "yolos": (yolos, "class_labels_classifier.layers.2", -1, None),
    "mask2former": (mask2former, "class_predictor", -1, "call"),
    "maskformer": (maskformer, "class_predictor", -1, None),
    "table_transformer": (lambda: build("TableTransformer", **detr("stage4")), "class_labels_classifier", -1, None),
    "dab_detr": (lambda: build("DabDetr", **detr("stage4", width_name="hidden_size")), "class_embed", None, None),
    "lw_detr": (lw_detr, "class_embed", None, None),
    "rf_detr": (rf_detr, "class_embed", None, None),
    "rf_detr_with_masks": (lambda: rf_detr("InstanceSegmentation"), "model.class_embed", None, None),
    "detr_panoptic": (panoptic, "detr.class_labels_classifier", -1, None),
}
# They add the quality of a query to its logits behind the layer.
WITH_QUALITY = ["d_fine", "deimv2"]
TWO_STAGE = [
    "deformable_detr_two_stage",
    "deformable_detr_untied",
    "rt_detr",
    "rt_detr_v2",
    "d_fine",
    "deimv2",
    "rf_detr",
]
SAVED = ["detr", "deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine", "deimv2"]
PROPOSALS = ("init_reference_points", "enc_outputs_class", "enc_topk_logits", "enc_outputs_coord_logits")


def make(name, spread):
    torch.manual_seed(0)
    model = MODELS[name][0]().eval()
    spread(model, locate_logits(model))
    return model


def images():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def outputs(model):
    with torch.inference_mode():
        return model(pixel_values=images())


def own_logits(model):
    """The logits that the model itself returns."""
    output = outputs(model)
    logits = output["class_queries_logits"] if "class_queries_logits" in output else output["logits"]
    return [logits.reshape(-1, logits.shape[-1])]


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITH_QUALITY])
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    _, path, background, final_only = MODELS[name]
    layer, _ = agreement(make(name, spread), own_logits)
    assert (layer.path, layer.background, layer.final_only) == (path, background, final_only)
    assert layer.activation == ("sigmoid" if background is None else "softmax")
    assert (layer.population, layer.unused) == ("queries", ())


def test_maskformer_with_a_loss_for_every_decoder_layer_stacks_them(agreement, spread):
    torch.manual_seed(0)
    model = maskformer(use_auxiliary_loss=True).eval()
    spread(model, locate_logits(model))

    def own(model):
        logits = model(pixel_values=images(), output_hidden_states=True)["class_queries_logits"]
        return [logits.reshape(-1, LABELS + 1)]

    layer, _ = agreement(model, own)
    assert (layer.path, layer.final_only) == ("class_predictor", "slice")


@pytest.mark.parametrize("name", WITH_QUALITY)
def test_they_are_read_before_the_quality_of_the_query_is_added(name, agreement, spread):
    model = make(name, spread)
    with torch.no_grad():
        for parameter in model.model.decoder.lqe_layers.parameters():
            parameter.normal_()  # zero before training

    def at_the_layer(model):
        seen = []
        # The quality branch gets the class logits as its first argument.
        quality = model.model.decoder.lqe_layers[-1]
        handle = quality.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
        model(pixel_values=images())
        handle.remove()
        return [seen[-1].reshape(-1, LABELS)]

    layer, folded = agreement(model, at_the_layer)
    assert layer.path == MODELS[name][1]
    plain, mapped = at_the_layer(model)[0], at_the_layer(folded)[0]
    # The quality itself stays, and is not small: statistics of the final logits would be others.
    np.testing.assert_allclose(own_logits(folded)[0] - own_logits(model)[0], mapped - plain, atol=1e-4)
    assert (own_logits(model)[0] - plain).abs().max() > 1e-3


@pytest.mark.parametrize("name", TWO_STAGE)
@pytest.mark.filterwarnings("ignore:.* was tied to")
def test_folding_leaves_the_proposals_of_the_encoder_alone(name, class_map, spread):
    model = make(name, spread)
    before = outputs(model)
    fold(model, locate_logits(model), class_map(LABELS))
    after = outputs(model)
    compared = [key for key in PROPOSALS if before.get(key) is not None]
    assert {"init_reference_points", "enc_outputs_class"} <= set(compared)
    compared.append("pred_boxes")
    assert all(torch.equal(before[key], after[key]) for key in compared)
    assert not torch.allclose(before["logits"], after["logits"])


def test_a_class_layer_tied_to_the_one_that_picks_proposals_is_untied(class_map, spread):
    model, affine = make("deformable_detr_two_stage", spread), class_map(LABELS)
    # As in checkpoints where one layer serves all slots.
    for slot in (*model.class_embed, *model.model.decoder.class_embed):
        slot.weight, slot.bias = model.class_embed[2].weight, model.class_embed[2].bias
    before = outputs(model)

    careless = copy.deepcopy(model)
    with torch.no_grad():
        careless.class_embed[2].weight.mul_(torch.tensor(affine.scale[:, None], dtype=torch.float32))
    assert not torch.allclose(outputs(careless)["enc_outputs_class"], before["enc_outputs_class"])

    with pytest.warns(UserWarning, match=r"`class_embed\.2\.(weight|bias)` was tied"):
        fold(model, locate_logits(model), affine)
    after = outputs(model)
    assert torch.equal(after["enc_outputs_class"], before["enc_outputs_class"])
    np.testing.assert_allclose(after["logits"], affine(before["logits"]), atol=1e-4)
    assert model.config.tie_word_embeddings is False


@pytest.mark.parametrize("name", [*SAVED, "rf_detr", "rf_detr_with_masks"])
def test_a_folded_model_is_the_same_after_saving_and_loading(name, class_map, spread, tmp_path):
    model = make(name, spread)
    layer = locate_logits(model)
    named = [*model.named_parameters(remove_duplicate=False)]
    others = {id(parameter) for path, parameter in named if not path.startswith(f"{layer.path}.")}
    tied = {id(parameter) for parameter in find_modules(model, layer)[0].parameters()} & others
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fold(model, layer, class_map(LABELS + (layer.background is not None), layer.background))
    assert any("was tied to" in str(warning.message) for warning in caught) == bool(tied)
    expected = outputs(model)
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    found = outputs(loaded.eval())
    for key in ("logits", "pred_boxes", "enc_outputs_class"):
        if expected.get(key) is not None:
            np.testing.assert_allclose(found[key], expected[key], atol=1e-6)


def test_columns_that_the_configuration_names_no_class_are_left_alone(spread):
    model = make("rf_detr", spread)
    model.config.id2label = {0: "N/A", 1: "cup", 2: "fork", 3: "N/A", 4: "bed"}
    layer = locate_logits(model)
    assert layer.unused == (0, 3)
    with record(model, layer) as moments:
        outputs(model)
    affine = logit_normalization(moments)
    assert (affine.scale[[0, 3]] == 1).all()
    assert (affine.shift[[0, 3]] == 0).all()
    assert (affine.scale[[1, 2, 4]] != 1).all()


def test_calibrate_takes_the_batches_of_an_image_processor(spread):
    model = make("rt_detr", spread)
    plain = own_logits(model)[0]
    handle = calibrate(model, [{"pixel_values": images(), "labels": [{}, {}]}], method="logn", margin=0.0).handle
    np.testing.assert_allclose(own_logits(model)[0].mean(dim=0), 0.0, atol=1e-4)
    handle.remove()
    np.testing.assert_array_equal(own_logits(model)[0], plain)


def test_renamed_layers_and_open_vocabularies_are_not_guessed(refusal, spread):
    refusal(make("detr", spread), LABELS + 1)
    part = {**BLOCKS, "num_hidden_layers": 1, "intermediate_size": 16}
    with pytest.raises(InputError, match="OwlViTForObjectDetection"):
        locate_logits(build("OwlViT", text_config=part, vision_config=part, projection_dim=16))


EDGES = {"shortest_edge": 64, "longest_edge": 96}
SQUARE = {"height": 64, "width": 64}
# The image processor that transformers itself has for each model.
PROCESSORS = {
    **dict.fromkeys(("detr", "table_transformer", "detr_panoptic"), ("Detr", EDGES)),
    **dict.fromkeys(("conditional_detr", "dab_detr"), ("ConditionalDetr", EDGES)),
    **dict.fromkeys(("deformable_detr", "deformable_detr_two_stage"), ("DeformableDetr", EDGES)),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine", "deimv2"), ("RTDetr", SQUARE)),
    **dict.fromkeys(("rf_detr", "rf_detr_with_masks"), ("RfDetr", SQUARE)),
    "lw_detr": ("DeformableDetr", SQUARE),
    "yolos": ("Yolos", EDGES),
}


@pytest.fixture
def sure(spread):
    """A model whose queries differ and whose classes are sure of themselves, as after training, and its processor."""

    def made(name):
        model = make(name, spread)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if ("query" in path and path.endswith("embeddings.weight")) or path.endswith("detection_tokens"):
                    parameter.normal_(std=3)
                if "lqe_layers" in path:
                    parameter.normal_(std=0.3)  # zero before training
            for module in find_modules(model, locate_logits(model)):
                module.bias.mul_(3).add_(2)
        kind, size = PROCESSORS[name]
        return model, getattr(hf, f"{kind}ImageProcessor")(size=size)

    return made


@pytest.mark.parametrize("name", PROCESSORS)
def test_decoded_proposals_are_the_detections_of_transformers(name, sure, same_detections, pictures):
    model, processor = sure(name)

    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        with torch.inference_mode():
            output = model(**processor(images=picture, return_tensors="pt"))
        result = processor.post_process_object_detection(output, target_sizes=[tuple(image.shape[-2:])])[0]
        return result["boxes"], result["scores"], result["labels"]

    same_detections(TransformersDetector(model, processor), pictures, own)


@pytest.mark.parametrize("name", ["detr", "rt_detr", "d_fine", "yolos"])
@pytest.mark.filterwarnings("ignore:.* was tied to")
def test_the_logits_are_those_of_the_class_layer_and_a_corrected_store_is_the_folded_model(
    name, sure, pictures, class_map
):
    """Also where the model adds a quality to them: what is recorded, corrected and folded is without it."""
    model, processor = sure(name)
    detector = TransformersDetector(model, processor)
    assert (detector.head.background, detector.head.activation) == (
        (-1, "softmax") if name in ("detr", "yolos") else (None, "sigmoid")
    )
    seen = []
    (module,) = find_modules(model, detector.logit_layer)
    handle = module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    (found,) = detector.propose(pictures[:1])
    handle.remove()
    np.testing.assert_array_equal(found.logits, seen[-1][0].detach())
    assert (found.objectness is not None) == (name in WITH_QUALITY)
    affine = class_map(detector.head.num_columns, detector.head.background)
    mapped = [replace(plain, logits=affine(plain.logits.astype(np.float64))) for plain in detector.propose(pictures)]
    fold(model, detector.logit_layer, affine)
    for expected, found in zip(mapped, TransformersDetector(model, processor).propose(pictures), strict=True):
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-4)
        if expected.objectness is not None:
            assert np.abs(expected.objectness).max() > 1e-2
            np.testing.assert_allclose(found.objectness, expected.objectness, atol=1e-4)


def test_an_image_gives_the_same_alone_and_in_a_batch(sure, pictures):
    """YOLOS has no mask for padding, so an image that is padded to the size of another one gets other boxes."""
    detector = TransformersDetector(*sure("yolos"))
    for image, found in zip(pictures, detector.propose(pictures), strict=True):
        (alone,) = detector.propose([image])
        np.testing.assert_allclose(found.boxes, alone.boxes, atol=1e-4)
        np.testing.assert_allclose(found.logits, alone.logits, atol=1e-5)


def test_masks_without_boxes_and_other_models_are_refused(sure):
    model, processor = sure("detr")
    config = hf.ViTConfig(**BLOCKS, num_hidden_layers=1, intermediate_size=8)
    with pytest.raises(InputError, match="`model`"):
        TransformersDetector(hf.ViTForImageClassification(config), processor)
    with pytest.raises(InputError, match="Mask2Former"):
        TransformersDetector(mask2former(), processor).propose([torch.zeros(3, 64, 64)])
    with pytest.raises(InputError, match="`processor`"):
        TransformersDetector(model, {})
