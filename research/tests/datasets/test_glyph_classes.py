"""Glyph classes: counts, determinism, stopped runs, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logn_research.datasets.glyphs.classes import generate_glyph_classes, is_glyph_classes, read_glyph_classes
from logn_research.datasets.glyphs.settings import GlyphClassSettings, geometric_counts, plan_classes
from logn_research.datasets.labelled_images import open_images

from logn.cli.main import execute
from logn.data.class_counts import ClassCounts
from logn.errors import InputError

SMALL = GlyphClassSettings(classes=6, most=12, fewest=2, dev=2, test=3, size=24, seed=4)
COMMAND = [
    "--classes",
    "6",
    "--most",
    "12",
    "--fewest",
    "2",
    "--dev",
    "2",
    "--test",
    "3",
    "--size",
    "24",
    "--seed",
    "4",
]


def arrays(folder):
    return {path.name: np.load(path) for path in folder.glob("*.npy")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate_glyph_classes(tmp_path_factory.mktemp("glyphs"), SMALL)


def test_training_is_long_tailed_and_the_other_splits_are_level(folder):
    train, dev, test = (open_images(folder, split) for split in ("train", "dev", "test"))
    assert sorted(train.image_counts.tolist(), reverse=True) == geometric_counts(6, 12, 2).tolist()
    assert (dev.image_counts == 2).all()
    assert (test.image_counts == 3).all()
    assert train.image(0).shape == (24, 24, 3)
    assert train.class_names == tuple(sorted(train.class_names))
    assert len(train.families) == 6
    assert ClassCounts.load(folder / "classes.json").image_counts.tolist() == train.image_counts.tolist()


def test_the_same_settings_draw_the_same_with_any_number_of_workers(folder, tmp_path, monkeypatch):
    again = generate_glyph_classes(tmp_path / "again", SMALL, workers=2)
    assert arrays(again).keys() == arrays(folder).keys()
    for name, array in arrays(folder).items():
        np.testing.assert_array_equal(arrays(again)[name], array)


def test_a_stopped_drawing_is_refused_and_drawn_again(folder, tmp_path):
    generate_glyph_classes(tmp_path, SMALL)
    (tmp_path / "classes.json").unlink()  # which is written last
    with pytest.raises(InputError, match="was interrupted"):
        read_glyph_classes(tmp_path)
    generate_glyph_classes(tmp_path, SMALL)
    for name, array in arrays(folder).items():
        np.testing.assert_array_equal(arrays(tmp_path)[name], array)
    drawn = []
    generate_glyph_classes(tmp_path, SMALL, progress=drawn.append)
    assert drawn == [SMALL.images]


def test_the_pictures_of_a_class_differ_and_the_splits_share_none(folder):
    pictures = np.concatenate([np.load(folder / f"{split}_images.npy") for split in ("train", "dev", "test")])
    assert len(np.unique(pictures.reshape(len(pictures), -1), axis=0)) == len(pictures)


def test_families_have_frequent_and_rare_members():
    plan = plan_classes(GlyphClassSettings(classes=50, dev=1, test=1))
    counts, families = np.bincount(plan.labels["train"]), np.array(plan.alphabet.families)
    for family in np.unique(families):
        mine = counts[families == family]
        assert mine.max() > 100
        assert mine.min() < 20


@settings(deadline=None)
@given(st.integers(2, 1203), st.integers(1, 2000), st.integers(1, 2000))
def test_the_curve_falls_from_the_most_to_the_fewest(classes, first, second):
    most, fewest = max(first, second), min(first, second)
    counts = geometric_counts(classes, most, fewest)
    assert (counts[0], counts[-1], len(counts)) == (most, fewest, classes)
    assert (np.diff(counts) <= 0).all()


def test_other_folders_and_settings_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="there seed is 4 and not 5"):
        generate_glyph_classes(folder, GlyphClassSettings(classes=6, most=12, fewest=2, dev=2, test=3, size=24, seed=5))
    (tmp_path / "settings.json").write_text('{"format": "logn glyph scenes", "settings": {}}')
    with pytest.raises(InputError, match="holds other files than"):
        generate_glyph_classes(tmp_path, SMALL)
    assert not is_glyph_classes(tmp_path)
    with pytest.raises(InputError, match="holds no glyph classes"):
        read_glyph_classes(tmp_path)
    with pytest.raises(InputError, match="Expected `split`"):
        read_glyph_classes(folder, "val")
    with pytest.raises(InputError, match="Expected `workers`"):
        generate_glyph_classes(tmp_path, SMALL, workers=0)
    with pytest.raises(InputError, match="from 2 to 1203, but got 1204"):
        GlyphClassSettings(classes=1204)


def test_the_command_draws_the_same(folder, tmp_path, capsys):
    assert execute(["data", "glyph-classes", "-o", str(tmp_path / "new"), *COMMAND, "--workers", "1", "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["classes"] == 6
    for name, array in arrays(folder).items():
        np.testing.assert_array_equal(arrays(tmp_path / "new")[name], array)


def test_bad_input_to_the_command_is_one_sentence(folder, capsys):
    assert execute(["data", "glyph-classes", "-o", str(folder), "--classes", "1"]) == 2
    error = capsys.readouterr().err
    assert "Expected `classes` to be from 2 to 1203" in error
    assert error.count("\n") == 1
