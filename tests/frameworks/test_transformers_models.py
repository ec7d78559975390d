"""Tiny random detectors and segmenters of Hugging Face: where the logits are, and what folding leaves alone."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from logn.calibrators.normalization import logit_normalization
from logn.deploy.calibrate import calibrate
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits
from logn.statistics.record import record

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

LABELS = 5
WIDTHS = [8, 8, 16, 16]
LEVELS = ["stage2", "stage3", "stage4"]
ALL_LEVELS = ["stage1", *LEVELS]


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


def hgnet(levels=LEVELS):
    return hf.HGNetV2Config(
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
        out_features=levels,
    )


def d_fine():
    options = rt_detr_options(backbone_config=hgnet(), decoder_n_points=[2] * 3)
    return hf.DFineForObjectDetection(hf.DFineConfig(**options))


def deimv2():
    return hf.Deimv2ForObjectDetection(
        hf.Deimv2Config(**rt_detr_options(backbone_config=hgnet(), decoder_n_points=[2] * 3))
    )


def pp_doclayout_v2():
    reading_order = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "coordinate_size": 4,
        "shape_size": 2,
        "num_classes": LABELS,
    }
    options = rt_detr_options(backbone_config=hgnet(), class_thresholds=[0.5] * LABELS, class_order=[*range(LABELS)])
    config = hf.PPDocLayoutV2Config(reading_order_config=reading_order, **options)
    return hf.PPDocLayoutV2ForObjectDetection(config)


def pp_doclayout_v3():
    masks = {"mask_feature_channels": [8, 8], "x4_feat_dim": 8, "num_prototypes": 4, "global_pointer_head_size": 4}
    config = hf.PPDocLayoutV3Config(**rt_detr_options(backbone_config=hgnet(ALL_LEVELS), **masks))
    return hf.PPDocLayoutV3ForObjectDetection(config)


def pp_doclayout_v4():
    options = rt_detr_options(backbone_config=hgnet(), global_pointer_head_size=4)
    config = hf.PPDocLayoutV4Config(hidden_size=options.pop("d_model"), **options)
    return hf.PPDocLayoutV4ForObjectDetection(config)


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


def rf_detr_config():
    backbone = hf.RfDetrDinov2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        num_windows=2,
        out_features=["stage1", "stage2"],
    )
    return hf.RfDetrConfig(
        backbone_config=backbone,
        d_model=16,
        decoder_layers=2,
        decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2,
        decoder_ffn_dim=16,
        intermediate_size=16,
        num_queries=6,
        group_detr=2,
        num_labels=LABELS,
    )


def rf_detr():
    return hf.RfDetrForObjectDetection(rf_detr_config())


def rf_detr_with_masks():
    return hf.RfDetrForInstanceSegmentation(rf_detr_config())


def detr_panoptic():
    # The group normalisation of its masks needs the width.
    options = detr_options(ALL_LEVELS, width=128, encoder_attention_heads=8)
    return hf.DetrForSegmentation(hf.DetrConfig(**options))


def encoder_only(**options):
    return {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
        "num_queries": 6,
        "num_labels": LABELS,
        "num_blocks": 2,
        "num_upscale_blocks": 1,
        "num_register_tokens": 1,
        **options,
    }


def eomt():
    return hf.EomtForUniversalSegmentation(hf.EomtConfig(**encoder_only(intermediate_size=16)))


def eomt_dinov3():
    return hf.EomtDinov3ForUniversalSegmentation(hf.EomtDinov3Config(**encoder_only(intermediate_size=16)))


def videomt():
    return hf.VideomtForUniversalSegmentation(hf.VideomtConfig(**encoder_only()))


def swin():
    return hf.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1] * 4,
        num_heads=[1] * 4,
        window_size=2,
        out_features=ALL_LEVELS,
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


def mask_options(**options):
    # The group normalisation needs 32 channels.
    return {
        "backbone_config": swin(),
        "hidden_dim": 32,
        "encoder_feedforward_dim": 16,
        "encoder_layers": 1,
        "num_attention_heads": 2,
        "dim_feedforward": 16,
        "num_queries": 6,
        "num_labels": LABELS,
        **options,
    }


def mask2former():
    options = mask_options(feature_size=32, mask_feature_size=32, decoder_layers=4)
    return hf.Mask2FormerForUniversalSegmentation(hf.Mask2FormerConfig(**options))


def oneformer():
    text = {"text_encoder_width": 32, "text_encoder_num_layers": 1}
    options = mask_options(conv_dim=32, mask_dim=32, decoder_layers=3, query_dec_layers=1, **text)
    return hf.OneFormerForUniversalSegmentation(hf.OneFormerConfig(**options))


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
    "rf_detr": (rf_detr, "class_embed", None, None),
    "rf_detr_with_masks": (rf_detr_with_masks, "model.class_embed", None, None),
    "deimv2": (deimv2, "model.decoder.class_embed.2", None, None),
    "pp_doclayout_v2": (pp_doclayout_v2, "model.decoder.class_embed.2", None, None),
    "pp_doclayout_v3": (pp_doclayout_v3, "model.decoder.class_embed", None, "call"),
    "pp_doclayout_v4": (pp_doclayout_v4, "model.decoder.class_embed.2", None, None),
    "detr_panoptic": (detr_panoptic, "detr.class_labels_classifier", -1, None),
    "eomt_dinov3": (eomt_dinov3, "class_predictor", -1, "call"),
    "videomt": (videomt, "class_predictor", -1, None),
    "oneformer": (oneformer, "model.transformer_module.decoder.class_embed", -1, "call"),
}
# They add the quality of a query to its logits behind the layer.
WITH_QUALITY = ["d_fine", "deimv2"]
TWO_STAGE = [
    *("deformable_detr_two_stage", "deformable_detr_untied", "rt_detr", "rt_detr_v2", "d_fine", "deimv2"),
    *("rf_detr", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4"),
]
SAVED = ["detr", "deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine", "deimv2", "pp_doclayout_v3"]
PROPOSALS = ("init_reference_points", "enc_outputs_class", "enc_topk_logits", "enc_outputs_coord_logits")


def make(name, spread):
    torch.manual_seed(0)
    model = MODELS[name][0]().eval()
    spread(model, locate_logits(model))
    return model


def images():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def outputs(model):
    if model.main_input_name == "pixel_values_videos":
        inputs = {"pixel_values_videos": images()[:, None].repeat(1, 3, 1, 1, 1)}
    elif isinstance(model, hf.OneFormerForUniversalSegmentation):
        inputs = {"pixel_values": images(), "task_inputs": torch.arange(154).reshape(2, 77) % 9}
    else:
        inputs = {"pixel_values": images()}
    with torch.inference_mode():
        return model(**inputs)


def own_logits(model):
    """The logits that the model itself returns."""
    output = outputs(model)
    if isinstance(model, hf.PPDocLayoutV2ForObjectDetection):
        # It puts the queries above its thresholds first, and thereby in another order once they are corrected.
        logits = output["intermediate_logits"][:, -1]
        assert torch.equal(logits.sort(dim=1).values, output["logits"].sort(dim=1).values)
    else:
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
    assert layer.path == MODELS[name][1]
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
    # PP-DocLayout V2 sorts its queries by their corrected scores.
    boxes = "intermediate_reference_points" if name == "pp_doclayout_v2" else "pred_boxes"
    assert torch.equal(before[boxes], after[boxes])
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


@pytest.mark.parametrize("name", [*SAVED, "rf_detr", "rf_detr_with_masks"])
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
    plain = copy.deepcopy(model)
    handle = calibrate(model, [{"pixel_values": images(), "labels": [{}, {}]}], method="logn", margin=0.0).handle
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
