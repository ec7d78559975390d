"""What tests of several folders need: one thread, the command line, and the blocks of a page."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings

from logn.cli.main import execute


@pytest.fixture(scope="module")
def one_thread():
    """Let torch compute on one thread while the tests of a module run: small models are quicker, and to the bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(capsys):
    """Run `logn` with these arguments; gives code, out, err, and the parsed JSON when it was asked for."""

    def call(*arguments):
        capsys.readouterr()
        code = execute([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        parsed = json.loads(streams.out) if "--json" in arguments and code != 2 else None
        return SimpleNamespace(code=code, out=streams.out, err=streams.err, json=parsed)

    return call


@pytest.fixture
def refused(run):
    """Run `logn`, expect code 2 and one sentence; gives the sentence."""

    def call(*arguments):
        result = run(*arguments)
        assert (result.code, result.out) == (2, "")
        return result.err.removeprefix("Error: ").strip()

    return call


@pytest.fixture
def blocks(request):
    """The blocks of a language on the page of the module, which its PAGE names."""

    def of(language):
        text = request.module.PAGE.read_text(encoding="utf-8")
        return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)

    return of


@pytest.fixture
def run_logn(capsys):
    """Run lines of `logn …` in this process, which imports torch once for all of them; gives what they print."""

    def call(block, *, shorter=None):
        for long, short in (shorter or {}).items():
            assert long in block, f"`{long}` is not in\n{block}"
            block = block.replace(long, short)
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            if words:
                assert words[0] == "logn"
                assert execute(words[1:]) == 0, (words, capsys.readouterr().err)
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Read only: a few glyph scenes in `glyphs`, and in `runs/glyphs` a detector that saw them once or twice."""
    # Here, since the environment of MMDetection has no torchvision.
    from logn_research.training.recipes import DetectorTrainingConfig
    from logn_research.training.train import train_detector

    folder = tmp_path_factory.mktemp("trained")
    glyphs = generate_glyph_scenes(folder / "glyphs", GlyphSettings(classes=6, train=24, dev=1, test=8, size=64))
    train_detector(DetectorTrainingConfig(glyphs, folder / "runs" / "glyphs", iterations=2), progress=False)
    return folder


@pytest.fixture
def few_weights(monkeypatch):
    """Build the paper's detectors with a shallow backbone and small heads: the same modules, a tenth of the weights."""
    from logn_research.training import detectors
    from torch import nn
    from torchvision.models.resnet import BasicBlock, ResNet

    def shallow(weights=None, **settings):
        return ResNet(BasicBlock, [1, 1, 1, 1], **settings)

    def small_head(_inputs, outputs):
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, outputs), nn.ReLU())

    masks = detectors.MaskRCNNHeads
    monkeypatch.setattr(detectors, "RESNETS", dict.fromkeys(detectors.RESNETS, shallow))
    monkeypatch.setattr(detectors, "TwoMLPHead", small_head)
    monkeypatch.setattr(detectors, "MaskRCNNHeads", lambda channels, layers, _: masks(channels, layers[:1], 1))


@pytest.fixture
def few_regions(monkeypatch):
    """Train small detectors on two images per iteration, and let trained ones propose ten regions."""
    from logn_research.experiments import cache
    from logn_research.training.recipes import DETECTOR_RECIPES

    small, load = DETECTOR_RECIPES["small"], cache.load_detector
    monkeypatch.setitem(DETECTOR_RECIPES, "small", replace(small, batch=2, learning_rate=small.learning_rate / 8))

    def with_few_proposals(path):
        detector = load(path)
        detector.rpn._post_nms_top_n = {"training": 10, "testing": 10}
        return detector

    monkeypatch.setattr(cache, "load_detector", with_few_proposals)


@pytest.fixture
def workplace(trained, tmp_path, monkeypatch):
    """A folder with a copy of what `trained` holds, in which the test is run."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
