"""Tiny random models of each family of Hugging Face: where the logits are, and what folding leaves alone."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from logn.deploy.calibrate import calibrate
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import LogitLayer, find_modules
from logn.logits.locate import locate_logits

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

LABELS = 5
WIDTHS = [8, 8, 16, 16]
LEVELS = ["stage2", "stage3", "stage4"]


def resnet(levels=LEVELS):
    return hf.ResNetConfig(
        embedding_size=8, hidden_sizes=WIDTHS, depths=[1] * 4, layer_type="basic", out_features=levels
    )


def detr_options(levels=LEVELS, width=16, **options):
    return {
        "backbone_config": resnet(levels),
        "backbone": None,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "d_model": width,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "num_queries": 6,
        "num_labels": LABELS,
        **options,
    }


def detr():
    return hf.DetrForObjectDetection(hf.DetrConfig(**detr_options(["stage4"])))


def conditional_detr():
    return hf.ConditionalDetrForObjectDetection(hf.ConditionalDetrConfig(**detr_options(["stage4"])))


def deformable_detr(**options):
    # Its group normalisation needs 32 channels.
    config = hf.DeformableDetrConfig(**detr_options(width=32, num_feature_levels=3, **options))
    return hf.DeformableDetrForObjectDetection(config)


def deformable_detr_refined():
    return deformable_detr(with_box_refine=True)


def deformable_detr_two_stage():
    return deformable_detr(with_box_refine=True, two_stage=True, two_stage_num_proposals=6)


def deformable_detr_untied():
    return deformable_detr(with_box_refine=True, two_stage=True, two_stage_num_proposals=6, tie_word_embeddings=False)


def rt_detr_options(**options):
    backbone = hf.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=WIDTHS, depths=[1] * 4, layer_type="basic", out_features=LEVELS
    )
    return {
        "backbone_config": backbone,
        "encoder_hidden_dim": 16,
        "encoder_in_channels": WIDTHS[1:],
        "feat_strides": [8, 16, 32],
        "encoder_layers": 1,
        "encoder_ffn_dim": 16,
        "encoder_attention_heads": 2,
        "d_model": 16,
        "num_queries": 6,
        "decoder_in_channels": [16] * 3,
        "decoder_ffn_dim": 16,
        "num_feature_levels": 3,
        "decoder_n_points": 2,
        "decoder_layers": 3,
        "decoder_attention_heads": 2,
        "num_denoising": 0,
        "num_labels": LABELS,
        **options,
    }


def rt_detr():
    return hf.RTDetrForObjectDetection(hf.RTDetrConfig(**rt_detr_options()))


def rt_detr_v2():
    return hf.RTDetrV2ForObjectDetection(hf.RTDetrV2Config(**rt_detr_options()))


def d_fine():
    backbone = hf.HGNetV2Config(
        embedding_size=8,
        depths=[1] * 4,
        hidden_sizes=WIDTHS,
        stem_channels=[3, 4, 8],
        stage_in_channels=[8, 8, 8, 16],
        stage_mid_channels=[4] * 4,
        stage_out_channels=WIDTHS,
        stage_num_blocks=[1] * 4,
        stage_downsample=[False, True, True, True],
        stage_light_block=[False] * 4,
        stage_kernel_size=[3] * 4,
        stage_numb_of_layers=[1] * 4,
        out_features=LEVELS,
    )
    config = hf.DFineConfig(**rt_detr_options(backbone_config=backbone, decoder_n_points=[2] * 3))
    return hf.DFineForObjectDetection(config)


def yolos():
    config = hf.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 64],
        patch_size=16,
        num_detection_tokens=6,
        num_labels=LABELS,
    )
    return hf.YolosForObjectDetection(config)


def table_transformer():
    return hf.TableTransformerForObjectDetection(hf.TableTransformerConfig(**detr_options(["stage4"])))


def dab_detr():
    options = detr_options(["stage4"])
    return hf.DabDetrForObjectDetection(hf.DabDetrConfig(hidden_size=options.pop("d_model"), **options))


def lw_detr():
    backbone = hf.LwDetrViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        pretrain_image_size=64,
        num_windows=4,
        window_block_indices=[0],
        out_indices=[1],
        out_features=None,
    )
    config = hf.LwDetrConfig(
        backbone_config=backbone,
        d_model=16,
        decoder_layers=2,
        decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2,
        decoder_ffn_dim=16,
        num_queries=6,
        group_detr=2,
        num_labels=LABELS,
        projector_scale_factors=[1.0],
    )
    return hf.LwDetrForObjectDetection(config)


def eomt():
    config = hf.EomtConfig(
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=64,
        patch_size=16,
        num_queries=6,
        num_labels=LABELS,
        num_blocks=2,
        num_upscale_blocks=1,
        num_register_tokens=1,
    )
    return hf.EomtForUniversalSegmentation(config)


def swin():
    return hf.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1] * 4,
        num_heads=[1] * 4,
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def maskformer(use_auxiliary_loss=False):
    config = hf.MaskFormerConfig(
        fpn_feature_size=32,
        mask_feature_size=32,
        backbone_config=swin(),
        decoder_config=hf.DetrConfig(**detr_options(["stage4"], width=32)),
        num_labels=LABELS,
        use_auxiliary_loss=use_auxiliary_loss,
    )
    return hf.MaskFormerForInstanceSegmentation(config)


def mask2former():
    # Its group normalisation needs 32 channels.
    config = hf.Mask2FormerConfig(
        backbone_config=swin(),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=4,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=6,
        num_labels=LABELS,
    )
    return hf.Mask2FormerForUniversalSegmentation(config)


# model, path, background, what is recorded of the layer's output
MODELS = {
    "detr": (detr, "class_labels_classifier", -1, None),
    "conditional_detr": (conditional_detr, "class_labels_classifier", None, None),
    "deformable_detr": (deformable_detr, "class_embed.2", None, None),
    "deformable_detr_refined": (deformable_detr_refined, "class_embed.2", None, None),
    "deformable_detr_two_stage": (deformable_detr_two_stage, "class_embed.2", None, None),
    "deformable_detr_untied": (deformable_detr_untied, "class_embed.2", None, None),
    "rt_detr": (rt_detr, "model.decoder.class_embed.2", None, None),
    "rt_detr_v2": (rt_detr_v2, "model.decoder.class_embed.2", None, None),
    "d_fine": (d_fine, "model.decoder.class_embed.2", None, None),
    "yolos": (yolos, "class_labels_classifier.layers.2", -1, None),
    "mask2former": (mask2former, "class_predictor", -1, "call"),
    "eomt": (eomt, "class_predictor", -1, "call"),
    "maskformer": (maskformer, "class_predictor", -1, None),
    "table_transformer": (table_transformer, "class_labels_classifier", -1, None),
    "dab_detr": (dab_detr, "class_embed", None, None),
    "lw_detr": (lw_detr, "class_embed", None, None),
}
TWO_STAGE = ["deformable_detr_two_stage", "deformable_detr_untied", "rt_detr", "rt_detr_v2", "d_fine"]
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


@pytest.mark.parametrize("name", [name for name in MODELS if name != "d_fine"])
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    _, path, background, final_only = MODELS[name]
    layer, _ = agreement(make(name, spread), own_logits)
    assert (layer.path, layer.background, layer.final_only) == (path, background, final_only)
    assert layer.activation == ("sigmoid" if background is None else "softmax")
    assert layer.population == "queries"


def test_maskformer_with_a_loss_for_every_decoder_layer_stacks_them(agreement, spread):
    torch.manual_seed(0)
    model = maskformer(use_auxiliary_loss=True).eval()
    spread(model, locate_logits(model))

    def own(model):
        logits = model(pixel_values=images(), output_hidden_states=True)["class_queries_logits"]
        return [logits.reshape(-1, LABELS + 1)]

    layer, _ = agreement(model, own)
    assert (layer.path, layer.final_only) == ("class_predictor", "slice")


def test_d_fine_is_read_before_the_quality_of_the_query_is_added(agreement, spread):
    model = make("d_fine", spread)
    with torch.no_grad():
        # Zero before training.
        for parameter in model.model.decoder.lqe_layers.parameters():
            parameter.normal_()

    def at_the_layer(model):
        seen = []
        decoder = model.model.decoder
        # The quality branch gets the class logits as its first argument.
        handle = decoder.lqe_layers[-1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(pixel_values=images())
        handle.remove()
        return [seen[-1].reshape(-1, LABELS)]

    layer, folded = agreement(model, at_the_layer)
    assert layer.path == MODELS["d_fine"][1]
    plain, mapped = at_the_layer(model)[0], at_the_layer(folded)[0]
    plain, mapped = plain.detach(), mapped.detach()
    change = own_logits(folded)[0] - own_logits(model)[0]
    # The quality itself stays, and is not small: statistics of the final logits would be others.
    np.testing.assert_allclose(change, mapped - plain, atol=1e-4)
    assert (own_logits(model)[0] - plain).abs().max() > 1e-3


@pytest.mark.parametrize("name", TWO_STAGE)
def test_folding_leaves_the_proposals_of_the_encoder_alone(name, class_map, spread):
    model = make(name, spread)
    before = outputs(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was tied to ")
        fold(model, locate_logits(model), class_map(LABELS))
    after = outputs(model)
    compared = [key for key in PROPOSALS if before.get(key) is not None]
    assert {"init_reference_points", "enc_outputs_class"} <= set(compared)
    assert all(torch.equal(before[key], after[key]) for key in compared)
    assert torch.equal(before["pred_boxes"], after["pred_boxes"])
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

    with pytest.warns(UserWarning, match=r"`class_embed\.2\.(weight|bias)` was tied to `.*`; it now has a copy"):
        fold(model, locate_logits(model), affine)
    after = outputs(model)
    assert torch.equal(after["enc_outputs_class"], before["enc_outputs_class"])
    np.testing.assert_allclose(after["logits"], affine(before["logits"]), atol=1e-4)
    assert model.config.tie_word_embeddings is False


@pytest.mark.parametrize("name", ["detr", "deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine"])
def test_a_folded_model_is_the_same_after_saving_and_loading(name, class_map, spread, tmp_path):
    model = make(name, spread)
    layer = locate_logits(model)
    tied = {id(parameter) for parameter in find_modules(model, layer)[0].parameters()} & {
        id(parameter)
        for path, parameter in model.named_parameters(remove_duplicate=False)
        if not path.startswith(f"{layer.path}.")
    }
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
    with pytest.raises(InputError, match="no map folded into it"):
        fold(loaded, layer, class_map(LABELS + (layer.background is not None), layer.background))


def vit():
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64, patch_size=16
    )
    config.num_labels = LABELS
    return hf.ViTForImageClassification(config), "classifier"


def deit():
    config = hf.DeiTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64, patch_size=16
    )
    config.num_labels = LABELS
    return hf.DeiTForImageClassificationWithTeacher(config), ("cls_classifier", "distillation_classifier")


def resnet_classifier():
    config = resnet()
    config.num_labels = LABELS
    return hf.ResNetForImageClassification(config), "classifier.1"


def convnext():
    config = hf.ConvNextConfig(hidden_sizes=WIDTHS, depths=[1] * 4)
    config.num_labels = LABELS
    return hf.ConvNextForImageClassification(config), "classifier"


@pytest.mark.parametrize("build", [vit, resnet_classifier, convnext], ids=lambda build: build.__name__)
def test_image_classifiers(build, agreement, spread):
    torch.manual_seed(0)
    model, path = build()
    spread(model.eval(), locate_logits(model))
    layer, _ = agreement(model, own_logits)
    assert layer == LogitLayer(path, population="images")


def test_the_two_heads_of_deit_share_one_map(class_map, spread):
    torch.manual_seed(0)
    model, paths = deit()
    layer = locate_logits(model.eval())
    assert layer.paths == paths
    spread(model, layer)
    affine, plain = class_map(LABELS), own_logits(model)[0]
    fold(model, layer, affine)
    np.testing.assert_allclose(own_logits(model)[0], affine(plain), atol=1e-4)


def test_a_multi_label_classifier_has_a_sigmoid():
    model, _ = vit()
    model.config.problem_type = "multi_label_classification"
    assert locate_logits(model).activation == "sigmoid"


def test_calibrate_takes_the_batches_of_an_image_processor(spread):
    model = make("rt_detr", spread)
    plain = copy.deepcopy(model)
    _, handle = calibrate(model, [{"pixel_values": images(), "labels": [{}, {}]}], margin=0.0)
    mapped = own_logits(model)[0]
    np.testing.assert_allclose(mapped.mean(dim=0), 0.0, atol=1e-4)
    handle.remove()
    np.testing.assert_array_equal(own_logits(model)[0], own_logits(plain)[0])


def test_a_renamed_layer_is_not_guessed(refusal, spread):
    refusal(make("detr", spread), LABELS + 1)


def test_open_vocabulary_detectors_are_not_guessed():
    config = hf.OwlViTConfig(
        text_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        projection_dim=16,
    )
    with pytest.raises(InputError, match="but got OwlViTForObjectDetection"):
        locate_logits(hf.OwlViTForObjectDetection(config))
