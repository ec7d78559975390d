"""A run is the same run, killed or not, and says what went wrong when something does."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from logn_research.training.checkpoint import read_checkpoint
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import load_detector, train_detector
from logn_research.training.trainer import read_log
from torch import nn

from logn.base.files import read_safetensors, write_safetensors
from logn.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def config_for(folder, output, **options):
    values = {"iterations": 6, "batch": 4, "image_size": 64, "checkpoint_every": 2, **options}
    return DetectorTrainingConfig(folder, output, **values)


@pytest.fixture(scope="module")
def finished(lvis_folder, tmp_path_factory):
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("run")
    train_detector(config_for(lvis_folder, output), device="cpu", progress=False)
    return output


def test_an_interrupted_run_ends_as_the_uninterrupted_one(
    lvis_folder, finished, tmp_path, stop_at_call, assert_same_run
):
    config = config_for(lvis_folder, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_detector(config, device="cpu", classification_loss=stop_at_call(5), progress=False)
    assert read_checkpoint(tmp_path).iteration == 4
    result = train_detector(config, device="cpu", progress=False)
    assert (result.resumed_from, result.iterations) == (4, 6)
    assert_same_run(tmp_path, finished)
    # The log has no trace of the interruption either, but for the clock.
    lines = [[{**line, "seconds": 0} for line in read_log(folder)] for folder in (tmp_path, finished)]
    assert lines[0] == lines[1]


def test_a_killed_process_resumes_to_the_same_run(lvis_folder, finished, tmp_path, assert_same_run):
    command = [sys.executable, "-m", "logn.cli.main", "train", lvis_folder, "-o", tmp_path]
    options = [
        "--iterations",
        "6",
        "--batch",
        "4",
        "--image-size",
        "64",
        "--set",
        "checkpoint_every=2",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        [*map(str, command), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not (tmp_path / "checkpoint.safetensors").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    error = process.communicate()[1]
    assert (tmp_path / "checkpoint.safetensors").exists(), error.decode()
    train_detector(config_for(lvis_folder, tmp_path), device="cpu", progress=False)
    assert_same_run(tmp_path, finished)


def test_a_finished_run_is_left_alone_and_a_fresh_one_starts_anew(lvis_folder, finished, tmp_path):
    result = train_detector(config_for(lvis_folder, finished), device="cpu", progress=False)
    assert (result.resumed_from, result.iterations, result.losses) == (6, 6, {})
    config = config_for(lvis_folder, tmp_path, iterations=1)
    train_detector(config, device="cpu", progress=False)
    assert train_detector(config, resume=False, device="cpu", progress=False).resumed_from == 0
    assert len(read_log(tmp_path)) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 1}, "is of a run with `seed` 0, but now it is 1"),
        ({"iterations": 9}, "of a run with `iterations` 6"),
        ({"classifier": "cosine"}, "of a run with `classifier` 'linear'"),
    ],
)
def test_another_run_in_the_folder_is_not_resumed(lvis_folder, finished, change, sentence):
    with pytest.raises(InputError, match=sentence):
        train_detector(config_for(lvis_folder, finished, **change), device="cpu", progress=False)


def test_the_log_can_be_plotted(finished):
    lines = read_log(finished)
    assert [line["iteration"] for line in lines] == [2, 4, 6]
    assert set(lines[0]) == {"iteration", "loss", "losses", "learning_rate", "seconds"}
    assert lines[0]["loss"] == pytest.approx(sum(lines[0]["losses"].values()))


def test_a_detector_is_rebuilt_from_its_run(finished, lvis_folder):
    detector = load_detector(finished, num_classes=4)
    assert not detector.training
    assert detector.class_names == tuple(f"class {number}" for number in range(4))
    weights = read_checkpoint(finished).model
    assert all(
        torch.equal(tensor, weights[name].reshape(tensor.shape)) for name, tensor in detector.state_dict().items()
    )
    assert len(detector.propose([torch.rand(3, 64, 64)])[0].logits) > 0


def test_another_class_count_gets_a_sentence(finished, make_lvis_folder, tmp_path):
    with pytest.raises(InputError, match="for 4 classes, but the data has 7"):
        load_detector(finished, num_classes=7)
    make_lvis_folder(tmp_path, images=2, classes=7)
    with pytest.raises(InputError, match="of a run with `num_classes` 4"):
        train_detector(config_for(tmp_path, finished), device="cpu", progress=False)


def test_a_file_that_is_no_checkpoint_gets_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"is not a run: it has no `checkpoint\.safetensors`, which"):
        load_detector(tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is not a valid safetensors file"):
        load_detector(tmp_path)


@pytest.mark.parametrize("entry", ["detector", "class_names", "iteration", "run", "extra"])
@pytest.mark.parametrize("text", ["{", None, "5.5"])
def test_a_checkpoint_that_is_not_whole_is_named(finished, tmp_path, entry, text):
    arrays, metadata = read_safetensors(
        finished / "checkpoint.safetensors", expected_format="logn-checkpoint", schema=2
    )
    changed = {name: value for name, value in (metadata | {entry: text}).items() if value is not None}
    write_safetensors(tmp_path / "checkpoint.safetensors", arrays, changed)
    with pytest.raises(InputError, match=r"` does not hold a (whole )?detector"):
        read_checkpoint(tmp_path)


def nan_from(call, counter, logits, labels):
    counter.append(1)
    loss = nn.functional.cross_entropy(logits, labels)
    return loss * float("nan") if len(counter) > call else loss


def test_a_loss_that_is_not_finite_stops_with_the_images_named(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path)
    loss = partial(nan_from, 3, [])
    with pytest.raises(InputError) as caught:
        train_detector(config, device="cpu", classification_loss=loss, progress=False)
    message = str(caught.value)
    assert "loss_classifier was nan at iteration 3" in message
    assert "on images " in message
    assert read_checkpoint(tmp_path).iteration == 2


class CountingLoss(nn.Module):
    """A loss with a state, such as Seesaw's counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, logits, labels):
        self.seen += len(labels)
        return nn.functional.cross_entropy(logits, labels)


def test_the_state_of_a_loss_is_kept_in_the_checkpoint_and_not_in_the_detector(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path, iterations=2)
    train_detector(config, device="cpu", classification_loss=CountingLoss(), progress=False)
    assert read_checkpoint(tmp_path).model["roi_heads.classification_loss.seen"] > 0
    resumed = CountingLoss()
    train_detector(config, device="cpu", classification_loss=resumed, progress=False)
    assert resumed.seen > 0
    assert load_detector(tmp_path).num_classes == 4


def test_training_leaves_the_random_state_alone(lvis_folder, tmp_path):
    before = torch.random.get_rng_state()
    train_detector(config_for(lvis_folder, tmp_path, iterations=1), device="cpu", progress=False)
    assert torch.equal(before, torch.random.get_rng_state())


def test_two_processes_train_one_detector_and_resume_it(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path / "run", iterations=4)
    result = train_detector(config, processes=2, device="cpu", progress=False)
    assert (result.iterations, result.processes) == (4, 2)
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["iteration"] == 4
    with pytest.raises(InputError, match="of a run with `processes` 2"):
        train_detector(config, device="cpu", progress=False)


def test_torchruns_variables_are_obeyed(lvis_folder, tmp_path, monkeypatch):
    # Port 0: the system chooses one that is free.
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    result = train_detector(config_for(lvis_folder, tmp_path, iterations=1), device="cpu", progress=False)
    assert (result.iterations, result.processes) == (1, 1)
    with pytest.raises(InputError, match="Expected `processes` to be 1 under torchrun"):
        train_detector(config_for(lvis_folder, tmp_path), processes=2)


def test_wrong_devices_and_processes_get_a_sentence(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path)
    with pytest.raises(InputError, match="Expected `device` to be auto, cpu or cuda"):
        train_detector(config, device="abacus")
    with pytest.raises(InputError, match="Expected `processes` to be at least 1"):
        train_detector(config, processes=0)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no CUDA device"):
            train_detector(config, device="cuda")


def test_mixed_precision_is_a_choice_that_a_run_keeps(lvis_folder, finished, tmp_path, stop_at_call, assert_same_run):
    whole, stopped = (config_for(lvis_folder, tmp_path / name, precision="mixed") for name in "ab")
    train_detector(whole, device="cpu", progress=False)
    with pytest.raises(KeyboardInterrupt):
        train_detector(stopped, device="cpu", classification_loss=stop_at_call(3), progress=False)
    train_detector(stopped, device="cpu", progress=False)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    half, full = (load_detector(folder).state_dict() for folder in (tmp_path / "a", finished))
    name = "roi_heads.box_predictor.cls_score.weight"
    assert half[name].dtype == torch.float32
    gap = (half[name] - full[name]).abs().max()
    assert 0 < gap < 0.1 * full[name].abs().max()  # bfloat16 has two to three digits
    with pytest.raises(InputError, match="of a run with `precision` 'mixed'"):
        train_detector(config_for(lvis_folder, tmp_path / "a"), device="cpu", progress=False)


def test_precision_has_three_names(lvis_folder, tmp_path):
    configs = {name: config_for(lvis_folder, tmp_path, precision=name) for name in ("auto", "full")}
    assert [configs["auto"].mixed_precision(device) for device in ("cpu", "cuda")] == [False, True]
    assert not configs["full"].mixed_precision("cuda")
    with pytest.raises(InputError, match="Expected `precision` to be one of"):
        config_for(lvis_folder, tmp_path, precision="half")
