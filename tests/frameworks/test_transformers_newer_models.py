"""Tiny random models of Hugging Face's newer families: RF-DETR, DEIMv2, layouts of documents, segmenters."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from logn.calibrators.logit_normalization import logit_normalization
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits
from logn.statistics.record import record

hf = pytest.importorskip("transformers", "5.22", reason="the extra `frameworks` is not installed, or is older")

LABELS = 5
QUERIES = 6
WIDTHS = [8, 8, 16, 16]


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
        num_queries=QUERIES,
        group_detr=2,
        num_labels=LABELS,
    )


def rf_detr():
    return hf.RfDetrForObjectDetection(rf_detr_config())


def rf_detr_with_masks():
    return hf.RfDetrForInstanceSegmentation(rf_detr_config())


def hgnet(levels):
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


def two_stage(levels=("stage2", "stage3", "stage4"), **options):
    return {
        "backbone_config": hgnet(list(levels)),
        "encoder_hidden_dim": 16,
        "encoder_in_channels": WIDTHS[1:],
        "feat_strides": [8, 16, 32],
        "encoder_layers": 1,
        "encoder_ffn_dim": 16,
        "encoder_attention_heads": 2,
        "d_model": 16,
        "num_queries": QUERIES,
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


def deimv2():
    return hf.Deimv2ForObjectDetection(hf.Deimv2Config(**two_stage(decoder_n_points=[2] * 3)))


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
    config = hf.PPDocLayoutV2Config(
        **two_stage(class_thresholds=[0.5] * LABELS, class_order=[*range(LABELS)], reading_order_config=reading_order)
    )
    return hf.PPDocLayoutV2ForObjectDetection(config)


def pp_doclayout_v3():
    levels = ("stage1", "stage2", "stage3", "stage4")
    config = hf.PPDocLayoutV3Config(
        **two_stage(levels, mask_feature_channels=[8, 8], x4_feat_dim=8, num_prototypes=4, global_pointer_head_size=4)
    )
    return hf.PPDocLayoutV3ForObjectDetection(config)


def pp_doclayout_v4():
    options = two_stage(global_pointer_head_size=4)
    config = hf.PPDocLayoutV4Config(hidden_size=options.pop("d_model"), **options)
    return hf.PPDocLayoutV4ForObjectDetection(config)


def detr_panoptic():
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1] * 4,
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = hf.DetrConfig(
        backbone_config=backbone,
        backbone=None,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        # The group normalisation of its masks needs them.
        d_model=128,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=8,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=QUERIES,
        num_labels=LABELS,
    )
    return hf.DetrForSegmentation(config)


def encoder_only(**options):
    return {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
        "num_queries": QUERIES,
        "num_labels": LABELS,
        "num_blocks": 2,
        "num_upscale_blocks": 1,
        "num_register_tokens": 1,
        **options,
    }


def eomt_dinov3():
    return hf.EomtDinov3ForUniversalSegmentation(hf.EomtDinov3Config(**encoder_only(intermediate_size=16)))


def videomt():
    return hf.VideomtForUniversalSegmentation(hf.VideomtConfig(**encoder_only()))


def oneformer():
    swin = hf.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1] * 4,
        num_heads=[1] * 4,
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = hf.OneFormerConfig(
        backbone_config=swin,
        num_queries=QUERIES,
        text_encoder_width=32,
        text_encoder_num_layers=1,
        conv_dim=32,
        mask_dim=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=3,
        num_attention_heads=2,
        dim_feedforward=16,
        query_dec_layers=1,
        num_labels=LABELS,
    )
    return hf.OneFormerForUniversalSegmentation(config)


# model, path, background, what is recorded of the layer's output
MODELS = {
    "rf_detr": (rf_detr, "class_embed", None, None),
    "rf_detr_with_masks": (rf_detr_with_masks, "model.class_embed", None, None),
    "pp_doclayout_v2": (pp_doclayout_v2, "model.decoder.class_embed.2", None, None),
    "pp_doclayout_v3": (pp_doclayout_v3, "model.decoder.class_embed", None, "call"),
    "pp_doclayout_v4": (pp_doclayout_v4, "model.decoder.class_embed.2", None, None),
    "detr_panoptic": (detr_panoptic, "detr.class_labels_classifier", -1, None),
    "eomt_dinov3": (eomt_dinov3, "class_predictor", -1, "call"),
    "videomt": (videomt, "class_predictor", -1, None),
    "oneformer": (oneformer, "model.transformer_module.decoder.class_embed", -1, "call"),
}
PROPOSALS = ("init_reference_points", "enc_outputs_class", "enc_topk_logits", "enc_outputs_coord_logits")


def make(build, spread):
    torch.manual_seed(0)
    model = build().eval()
    spread(model, locate_logits(model))
    return model


def outputs(model):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(2, 3, 64, 64, generator=generator)
    if model.main_input_name == "pixel_values_videos":
        inputs = {"pixel_values_videos": torch.rand(2, 3, 3, 64, 64, generator=generator)}
    elif isinstance(model, hf.OneFormerForUniversalSegmentation):
        inputs = {"pixel_values": pixels, "task_inputs": torch.randint(0, 9, (2, 77), generator=generator)}
    else:
        inputs = {"pixel_values": pixels}
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


@pytest.mark.parametrize("name", MODELS)
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    build, path, background, final_only = MODELS[name]
    layer, _ = agreement(make(build, spread), own_logits)
    assert (layer.path, layer.background, layer.final_only) == (path, background, final_only)
    assert layer.activation == ("sigmoid" if background is None else "softmax")
    assert (layer.population, layer.unused) == ("queries", ())


def test_deimv2_is_read_before_the_quality_of_the_query_is_added(agreement, spread):
    model = make(deimv2, spread)
    with torch.no_grad():
        # Zero before training.
        for parameter in model.model.decoder.lqe_layers.parameters():
            parameter.normal_()

    def at_the_layer(model):
        seen = []
        # The quality branch gets the class logits as its first argument.
        quality = model.model.decoder.lqe_layers[-1]
        handle = quality.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        outputs(model)
        handle.remove()
        return [seen[-1].reshape(-1, LABELS)]

    layer, folded = agreement(model, at_the_layer)
    assert layer == LogitLayer("model.decoder.class_embed.2", activation="sigmoid", population="queries")
    plain, mapped = at_the_layer(model)[0], at_the_layer(folded)[0]
    np.testing.assert_allclose(own_logits(folded)[0] - own_logits(model)[0], mapped - plain, atol=1e-4)
    assert (own_logits(model)[0] - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    "build", [rf_detr, deimv2, pp_doclayout_v2, pp_doclayout_v3, pp_doclayout_v4], ids=lambda build: build.__name__
)
def test_folding_leaves_the_proposals_of_the_encoder_alone(build, class_map, spread):
    model = make(build, spread)
    before = outputs(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was tied to ")
        fold(model, locate_logits(model), class_map(LABELS))
    after = outputs(model)
    compared = [key for key in PROPOSALS if before.get(key) is not None]
    assert {"init_reference_points", "enc_outputs_class"} <= set(compared)
    assert all(torch.equal(before[key], after[key]) for key in compared)
    assert torch.equal(before["intermediate_reference_points"], after["intermediate_reference_points"])
    assert not torch.allclose(before["logits"], after["logits"])


@pytest.mark.parametrize("build", [rf_detr, rf_detr_with_masks, deimv2, pp_doclayout_v3], ids=lambda b: b.__name__)
def test_a_folded_model_is_the_same_after_saving_and_loading(build, class_map, spread, tmp_path):
    model = make(build, spread)
    layer = locate_logits(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was tied to ")
        fold(model, layer, class_map(LABELS))
    expected = outputs(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    found = outputs(loaded)
    for key in ("logits", "pred_boxes"):
        np.testing.assert_allclose(found[key], expected[key], atol=1e-6)
    with pytest.raises(InputError, match="no map folded into it"):
        fold(loaded, layer, class_map(LABELS))


def test_columns_that_the_configuration_names_no_class_are_left_alone(spread):
    model = make(rf_detr, spread)
    model.config.id2label = {0: "N/A", 1: "cup", 2: "fork", 3: "N/A", 4: "bed"}
    layer = locate_logits(model)
    assert layer.unused == (0, 3)
    with record(model, layer) as moments:
        outputs(model)
    affine = logit_normalization(moments)
    assert (affine.scale[[0, 3]] == 1).all()
    assert (affine.shift[[0, 3]] == 0).all()
    assert (affine.scale[[1, 2, 4]] != 1).all()


def textnet():
    return hf.TextNetForImageClassification(hf.TextNetConfig(num_labels=LABELS)), "fc"


def wrapped_resnet():
    pytest.importorskip("timm", reason="the extra `frameworks` is not installed")
    config = hf.TimmWrapperConfig(architecture="resnet18", num_labels=LABELS)
    return hf.TimmWrapperForImageClassification(config), "timm_model.fc"


@pytest.mark.parametrize("build", [textnet, wrapped_resnet], ids=lambda build: build.__name__)
def test_image_classifiers_that_name_their_last_layer_otherwise(build, agreement, spread):
    torch.manual_seed(0)
    model, path = build()
    spread(model.eval(), locate_logits(model))
    layer, _ = agreement(model, own_logits)
    assert layer == LogitLayer(path, population="images")


def test_a_wrapped_classifier_of_several_labels_has_a_sigmoid():
    model, _ = wrapped_resnet()
    model.config.problem_type = "multi_label_classification"
    assert locate_logits(model).activation == "sigmoid"
