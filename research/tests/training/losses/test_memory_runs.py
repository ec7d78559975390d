"""Runs with a feature memory: filled before the second stage, kept beside the checkpoint, one for all of a cascade."""

import copy
import time

import pytest
import torch
from logn_research.losses import make_loss
from logn_research.losses.softmax import INITIAL_SCORE, EquilibriumLoss
from logn_research.training.checkpoint import read_checkpoint
from logn_research.training.feature_memory import FeatureMemory, load_memory, memory_file, remove_memories, save_memory
from logn_research.training.heads import STAGE_BOX_WEIGHTS, CascadeRegionHeads
from logn_research.training.layers import BoxPredictor, MaskPredictor
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.regions import draw_regions
from logn_research.training.small import RegionSampler, SmallBoxHead, SmallMaskHead
from logn_research.training.train import DetectorTrainer, train_detector
from torch import nn

from logn.data.class_counts import ClassCounts
from logn.errors import InputError

COUNTS = ClassCounts([90, 30, 4, 1], num_images=100)
SCORES = "roi_heads.classification_loss.mean_score"
pytestmark = pytest.mark.usefixtures("one_thread")


def config_for(folder, output, **options):
    values = {"iterations": 3, "batch": 4, "image_size": 64, "checkpoint_every": 1, **options}
    return DetectorTrainingConfig(folder, output, **values)


@pytest.fixture(scope="module")
def first_stage(lvis_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("first")
    train_detector(config_for(lvis_folder, output), device="cpu", progress=False)
    return output


def second_stage(folder, output, first, **options):
    return config_for(folder, output, loss="loce", feature_memory=True, start=first, only="heads", **options)


def test_filling_the_memory_is_no_time_of_the_iterations(lvis_folder, first_stage, tmp_path, monkeypatch):
    fill = DetectorTrainer.fill_memory

    def slow_fill(run, *arguments, **options):
        fill(run, *arguments, **options)
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    monkeypatch.setattr(DetectorTrainer, "fill_memory", slow_fill)
    began = time.process_time()
    config = second_stage(lvis_folder, tmp_path / "run", first_stage, iterations=1)
    result = train_detector(config, device="cpu", progress=False)
    assert 0.0 < result.processor_seconds < time.process_time() - began - 0.3


def test_a_resumed_run_has_the_memory_that_it_had(lvis_folder, first_stage, tmp_path, stop_at_call, assert_same_run):
    train_detector(second_stage(lvis_folder, tmp_path / "whole", first_stage), device="cpu", progress=False)
    config = second_stage(lvis_folder, tmp_path / "stopped", first_stage)
    stopping = stop_at_call(2, EquilibriumLoss(4, background=0))
    with pytest.raises(KeyboardInterrupt):
        train_detector(config, device="cpu", progress=False, classification_loss=stopping)
    assert [path.name for path in (tmp_path / "stopped").glob("feature_memory*")] == [
        "feature_memory_0_at_2.safetensors"
    ]
    assert train_detector(config, device="cpu", progress=False).resumed_from == 2
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    memories = [FeatureMemory(4), FeatureMemory(4)]
    for memory, name in zip(memories, ("whole", "stopped"), strict=True):
        load_memory(memory, tmp_path / name, 3, 0)
    contents = [memory.content() for memory in memories]
    assert len(memories[0]) > 0
    assert all(torch.equal(tensor, contents[1][name]) for name, tensor in contents[0].items())


def test_a_pass_over_the_images_fills_the_memory_and_the_scores_before_any_weight_changes(
    lvis_folder, first_stage, tmp_path, stop_at_call
):
    config = second_stage(lvis_folder, tmp_path, first_stage)
    loss = stop_at_call(0, EquilibriumLoss(4, background=0))
    with pytest.raises(KeyboardInterrupt):
        train_detector(config, device="cpu", progress=False, classification_loss=loss)
    filled, before = read_checkpoint(tmp_path), read_checkpoint(first_stage)
    assert filled.iteration == 0
    assert all(torch.equal(tensor, filled.model[name]) for name, tensor in before.model.items())
    assert (filled.model[SCORES] != INITIAL_SCORE).all()
    memory = FeatureMemory(4)
    load_memory(memory, tmp_path, 0, 0)
    assert len(memory) == 4 * 80  # every class has five objects or more, with sixteen boxes each
    assert torch.unique(memory.features_of(0), dim=0).shape[0] > 16


def test_frozen_normalisation_stays_frozen_after_the_pass(lvis_folder, first_stage, tmp_path):
    train_detector(second_stage(lvis_folder, tmp_path, first_stage, iterations=1), device="cpu", progress=False)
    before, after = (
        read_checkpoint(first_stage).model,
        read_checkpoint(tmp_path).model,
    )
    statistics = [name for name in before if "running_" in name]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)


def test_without_a_first_stage_the_memory_fills_while_training(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path, loss="loce", feature_memory=True, iterations=1)
    train_detector(config, device="cpu", progress=False)
    memory = FeatureMemory(4)
    load_memory(memory, tmp_path, 1, 0)
    assert 0 < len(memory) < 4 * 80


def test_a_run_whose_memory_is_gone_is_not_resumed(lvis_folder, first_stage, tmp_path):
    train_detector(second_stage(lvis_folder, tmp_path, first_stage, iterations=1), device="cpu", progress=False)
    remove_memories(tmp_path)
    with pytest.raises(InputError, match=r"feature memory of the run, `.*at_1\.safetensors`, is missing"):
        train_detector(second_stage(lvis_folder, tmp_path, first_stage, iterations=1), device="cpu", progress=False)


def test_each_process_keeps_a_memory_of_its_own(lvis_folder, first_stage, tmp_path):
    config = second_stage(lvis_folder, tmp_path, first_stage, iterations=1)
    train_detector(config, processes=2, device="cpu", progress=False)
    memories = [FeatureMemory(4), FeatureMemory(4)]
    for rank, memory in enumerate(memories):
        load_memory(memory, tmp_path, 1, rank)
    assert all(len(memory) > 0 for memory in memories)
    assert not torch.equal(memories[0].features_of(0)[-1], memories[1].features_of(0)[-1])


def test_only_the_memories_of_the_last_checkpoint_are_kept(tmp_path):
    memory = FeatureMemory(2)
    for iteration in (1, 2):
        for rank in (0, 1):
            save_memory(memory, tmp_path, iteration, rank)
    remove_memories(tmp_path, but=2)
    assert sorted(tmp_path.iterdir()) == [memory_file(tmp_path, 2, rank) for rank in (0, 1)]
    load_memory(memory, tmp_path, 2, 0)  # an empty one comes back as such
    assert len(memory) == 0


def cascade_heads():
    def stage():
        return {
            "box_head": SmallBoxHead(8, 7, 16, 16),
            "box_predictor": BoxPredictor(16, 4, classifier="linear", temperature=1.0, class_agnostic=True),
            "mask_head": SmallMaskHead(8, 4),
            "mask_predictor": MaskPredictor(4, 4, 1, classifier="linear", temperature=1.0),
        }

    stages = [stage() for _ in range(3)]
    modules = {name: nn.ModuleList(parts[name] for parts in stages) for name in stages[0]}
    loss = make_loss("loce", COUNTS)
    heads = CascadeRegionHeads(
        box_roi_pool=RegionSampler(7), mask_roi_pool=RegionSampler(14), read_as=loss, regions_per_image=16, **modules
    )
    heads.use_loss(loss)
    return heads.train()


def cascade_batch():
    torch.manual_seed(0)
    features = {"0": torch.randn(2, 8, 16, 16)}
    boxes = torch.tensor([[4.0, 4.0, 28.0, 30.0], [34.0, 30.0, 60.0, 58.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 3]), "masks": torch.ones(2, 64, 64, dtype=torch.uint8)}
    proposals = [torch.cat((boxes + 2, torch.tensor([[0.0, 40.0, 20.0, 60.0]]))) for _ in range(2)]
    return features, proposals, [(64, 64)] * 2, [target, copy.deepcopy(target)]


def test_every_stage_of_a_cascade_draws_by_its_own_scores_from_one_memory():
    heads, batch = cascade_heads(), cascade_batch()
    heads.feature_memory = FeatureMemory(4)
    for stage in range(3):
        heads.stage_loss(stage).mean_score[[1, 3]] = 1e9  # not in the batch: what is drawn of them brings nothing
    seen = []
    for predictor in heads.box_predictor:
        predictor.register_forward_hook(lambda module, inputs, output: seen.append(len(output[0])))
    losses = heads.losses(*batch)
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert len(heads.feature_memory) == 2 * 2 * 16  # the objects of the batch once, not once per stage
    assert all(rows > 8 * 4 for rows in seen)
    assert len(seen) == 3


def test_a_pass_teaches_each_stage_of_a_cascade_its_scores():
    heads = cascade_heads().eval()
    heads.feature_memory = FeatureMemory(4)
    heads.learn_regions(*cascade_batch())
    scores = torch.stack([heads.stage_loss(stage).mean_score for stage in range(3)])
    assert (scores[:, [0, 2]] != INITIAL_SCORE).all()
    assert (scores[:, [1, 3]] == INITIAL_SCORE).all()
    assert torch.unique(scores[:, 0]).numel() == 3
    assert len(heads.feature_memory) == 2 * 2 * 16


def test_drawn_offsets_have_the_weights_of_the_stage():
    heads = cascade_heads()
    heads.feature_memory = FeatureMemory(4)
    heads.learn_regions(*cascade_batch())
    drawn = []
    for coder in heads.stage_coders:
        torch.manual_seed(1)
        drawn.append(draw_regions(heads.feature_memory, heads.classification_loss, coder, torch.device("cpu")).offsets)
    plain = drawn[0] / torch.tensor(STAGE_BOX_WEIGHTS[0])
    torch.testing.assert_close(drawn[2], plain * torch.tensor(STAGE_BOX_WEIGHTS[2]))
    # What a box answers brings it back to the true one.
    assert plain.abs().max() < 1.0
