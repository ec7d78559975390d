"""Files and folders that are not what a verb needs: the sentence says what they are and what to do."""

import json

import numpy as np
import pytest


@pytest.fixture
def stats(run, logits, tmp_path):
    path = tmp_path / "stats.safetensors"
    assert run("collect", tmp_path / "shards", "-o", path).code == 0
    return path


def test_counts_that_lack_the_background_ask_for_it(refused, stats, tmp_path):
    (tmp_path / "counts.json").write_text("[30, 20, 10]")
    sentence = refused("inspect", stats, "--counts", tmp_path / "counts.json")
    assert sentence.endswith("but got 3; is one of the columns a background (`--background first` or `last`)?")
    assert sentence == refused(
        "fit", stats, "--method", "norcal", "--counts", tmp_path / "counts.json", "-o", tmp_path / "a.safetensors"
    )
    (tmp_path / "counts.json").write_text("[30, 20]")
    assert refused("inspect", stats, "--counts", tmp_path / "counts.json").endswith("but got 2.")


def test_a_table_without_a_header_is_told_to_have_one(refused, stats, tmp_path):
    (tmp_path / "counts.csv").write_text("40,1\n30,2\n20,3\n10,4\n")
    sentence = refused("inspect", stats, "--counts", tmp_path / "counts.csv")
    assert sentence.endswith("the columns are: 40, 1; the first line must name the columns.")


def test_names_that_are_there_twice_match_nothing(run, refused, logits, tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\ncat\nbackground\n")
    (tmp_path / "counts.csv").write_text("name,image_count\ndog,3\ncat,30\ncat,20\n")
    stats = tmp_path / "named.safetensors"
    run("collect", tmp_path / "shards", "--background", "last", "--class-names", tmp_path / "names.txt", "-o", stats)
    sentence = refused("inspect", stats, "--counts", tmp_path / "counts.csv")
    assert sentence == "Expected the counts to name each class once, but 'cat' is there twice."


def test_a_file_in_the_place_of_a_folder_is_named(refused, tmp_path):
    (tmp_path / "taken").write_text("")
    for output in (tmp_path / "taken", tmp_path / "taken" / "deeper"):
        sentence = refused("data", "glyphs", "--classes", 2, "--train", 4, "--dev", 2, "--test", 2, "-o", output)
        assert sentence == f"Expected `{tmp_path / 'taken'}` to be a folder, but it is a file."


def test_models_of_others_are_told_where_to_go(refused, tmp_path):
    data = tmp_path / "val.json"
    image = {"id": 1, "file_name": "1.png", "height": 8, "width": 8}
    data.write_text(json.dumps({"images": [image], "categories": [{"id": 1, "name": "cup"}], "annotations": []}))
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    options = ("--data", data, "-o", tmp_path / "predictions")
    assert "to be a whole ONNX model, but it cannot be read" in refused("predict", tmp_path / "model.onnx", *options)
    sentence = refused("predict", "--model", tmp_path / "nowhere", *options)
    assert sentence == (
        f"Expected `{tmp_path / 'nowhere'}` to be a run, a folder with `checkpoint.safetensors` that `logn train` "
        "writes, but there is none."
    )
    assert not (tmp_path / "predictions").exists()


def test_sentences_of_the_option_parser_end(refused, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    affine = tmp_path / "affine.safetensors"
    sentence = refused("apply", affine, tmp_path / "a.npy", tmp_path / "a.npy", "-o", tmp_path / "b.npy")
    assert ". Try `logn apply --help`." in sentence


def test_the_folder_of_scenes_is_inspected_by_its_annotations(run, tmp_path):
    folder = tmp_path / "scenes"
    small = ("--classes", 3, "--train", 6, "--dev", 2, "--test", 4, "--size", 64, "--workers", 1)
    drawn = run("data", "glyphs", "-o", folder, *small)
    assert drawn.code == 0
    assert f"logn train {folder} -o run" in drawn.err
    assert run("data", "inspect", folder, "--json").json["images"] == 6
    assert run("data", "inspect", folder, "--split", "test", "--json").json["images"] == 4


def test_a_folder_in_the_place_of_a_file_is_named(run, refused, stats, tmp_path):
    folder = tmp_path / "shards"
    sentence = f"Expected `{folder}` to be a file, but it is a folder."
    assert refused("inspect", folder) == sentence
    assert refused("fit", folder, "-o", tmp_path / "a.safetensors") == sentence
    store = f"Expected `{folder}` to be a prediction store, but it holds no `part-00000`."
    assert refused("evaluate", folder, "-a", folder) == store
    assert refused("report", stats) == f"Expected `{stats}` to be the folder of a run, but it is a file."
