"""Messages at the command line name options, those of Python arguments: no verb prints a Python word."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest

import logn
from logn.cli import main
from logn.cli.wording import PARAMETERS, as_typed, parameters_of

PACKAGE = Path(logn.__file__).parent
# What no verb calls (estimators, PyTorch in a script, Ray, callbacks), and what a user's own Python code builds.
IN_PYTHON_ONLY = (
    *("methods/normalizer.py", "correction/calibrate.py", "models/hooks.py", "ray.py", "sklearn.py"),
    *("callbacks/ultralytics.py", "callbacks/mmdetection.py"),
    *("models/layer.py", "models/proposals.py", "predictions/store.py"),
)
# Fields of files, which a message names as they stand there, and a line of Python for what no verb does.
FIELDS = re.compile(
    r"logn\.calibrate\([^)]*\)|"
    "`(?:file_name|coco_url|kpt_shape|neg_category_ids|not_exhaustive_category_ids|image_id|category_id|class_names|"
    "(?:sample|scored)_(?:rows|keys|capacity|objectness)|instance_counts|box_classes|boxes_per_proposal|batch_rows|score_threshold|"
    r"num_columns|mean_probability|roi_heads\.box_predictor\.cls_score|class_columns|count_kind|on_logits|part_\w+)`"
)
PYTHON_WORDS = re.compile(r"""(?<![\w:,`])[a-z]\w*=(?:True|False|None|\(|["']|lambda)|`[a-z]+(?:_[a-z]+)+`|`moments`""")


def text_of(node):
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def messages(path):
    """What a module raises as an InputError or warns of, with … for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name in ("InputError", "warn") and node.args and (text := text_of(node.args[0])):
            yield node.lineno, text


@pytest.fixture
def typed():
    """As if a verb with the parameters of all of them ran."""
    verbs = [main.load_verb(verb) for verb in main.VERBS if verb.target is not None]
    parameters = {name: word for verb in verbs for name, word in parameters_of(verb).items()}
    token = PARAMETERS.set(parameters)
    yield parameters
    PARAMETERS.reset(token)


def test_no_message_has_python_words_left(typed):
    found, read = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for line, text in () if name in IN_PYTHON_ONLY else messages(path):
            read += 1
            if left := PYTHON_WORDS.search(FIELDS.sub("", as_typed(text))):
                found.append(f"{name}:{line}: {left[0]} in {as_typed(text)}")
    assert read > 300
    assert found == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("`a.onnx` exists already: choose another `output`, or pass overwrite=True to replace it.", "`--overwrite` to"),
        ("choose another `output`, or", "choose another `--output`, or"),
        ("Pass `like`: one of yolov5.", "Pass `--like`: one of"),
        ('Pass activation="softmax" for a classifier.', "Pass `--activation softmax` for"),
        ("Expected `goal` to be f1, but got 'x'.", "Expected `--thresholds` to be f1"),
        ("Expected the threshold `at` to lie", "the threshold `--at` to lie"),
        ("name one as `tensor`: a, b.", "name one as `--tensor`: a, b."),
        ("pass `class_names` (`--class-names`).", "pass `--class-names`."),  # as a message may say both
        ("fold the one before (in Python allow_refold=True puts (another) on top).", "fold the one before."),
        # What is the user's own keeps its name, though an option has it too.
        ("`logits` of `m.onnx` holds probabilities", "`logits` of `m.onnx` holds"),
        ("Expected the threshold of `size` to lie", "threshold of `size` to"),
        ("The output `labels` would change too", "The output `labels` would"),
        ("`output` is computed, not stored", "`output` is computed"),
        ("norcal:gamma=0.6 needs counts", "norcal:gamma=0.6 needs"),
    ],
)
def test_arguments_become_options_and_names_of_users_stay(typed, message, words):
    assert words in as_typed(message)


@pytest.mark.usefixtures("typed")
def test_python_users_see_python_words():
    message = "`a` exists already: choose another `output`, or pass overwrite=True to replace it."
    PARAMETERS.set(None)
    assert as_typed(message) == message


@pytest.fixture
def files(make_files, save_onnx, draw_images, tmp_path, monkeypatch):
    """What the commands below take, in the current folder."""
    monkeypatch.chdir(make_files(tmp_path))
    rng = np.random.default_rng(0)
    text = "(float[N, 3, 8, 8] x) => (float[N, 5, 8, 8] y) { z = Conv(x, w, b) y = Sigmoid(z) }"
    save_onnx(tmp_path / "plain.onnx", text, w=rng.normal(size=(5, 3, 1, 1)), b=np.linspace(-1, -6, 5))
    draw_images(tmp_path / "train", 4, (8, 8))
    np.save("shares.npy", np.full((50, 3), 1 / 3))
    (tmp_path / "old.onnx").write_text("mine")
    content = json.loads((tmp_path / "gt.json").read_text())
    images = [image | {"width": 8, "height": 8, "file_name": "0.png"} for image in content["images"]]
    (tmp_path / "sized.json").write_text(json.dumps(content | {"images": images}))
    (tmp_path / "other.json").write_text(json.dumps([5, 4]))
    logn.ClassAffine(np.ones(5), np.arange(5.0)).save(tmp_path / "map.safetensors")
    return tmp_path


COMMANDS = {
    "correct plain.onnx --images train -o x.onnx": "Pass `--like`: one of",
    "correct plain.onnx --images train --like rtdetr -o plain.onnx": "`--output` is the model itself",
    "fold plain.onnx map.safetensors -o old.onnx": "choose another `--output`, or pass `--overwrite` to replace it.",
    "correct plain.onnx --images train --like rtdetr --method norcal": "needs the training counts: pass `--counts`",
    "correct plain.onnx --images train --like rtdetr --thresholds f1": "pass `--data`.",
    "predict plain.onnx -d sized.json -o p": "Pass `--like`",
    "compare store -d gt.json --methods norcal": "needs `--counts`",
    "compare test.npy --labels labels.npy --methods logn": "needs `--statistics`",
    "compare test.npy --labels labels.npy --train-logits shares.npy": "`shares.npy` holds probabilities",
    "compare test.npy --labels labels.npy --counts other.json": "`--counts` has 2 classes",
    "thresholds store -d gt.json --thresholds precision": "Expected `--thresholds` to be f1",
    "thresholds store -d gt.json --at 0": "the threshold `--at` to lie",
    "fold plain.onnx --thresholds {\"a\":0.5} -o x.onnx": "pass `--class-names`.",
    "fold plain.onnx map.safetensors -o stats.safetensors": "",
    "fit --method norcal -o a.safetensors": "needs `--counts`",
    "fit --method logn -o a.safetensors": "needs `STATISTICS`",
    "collect shares.npy --key x -o s.safetensors": "leave `--key` out",
    "report store": "",
    "apply map.safetensors test.npy -o c.npy": "",
    "inspect stats.safetensors --counts other.json": "Expected `--counts` to have",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("line", COMMANDS)
def test_no_verb_prints_python_words(run, line):
    done = run(*line.split())
    assert done.code == 2
    assert COMMANDS[line] in done.err
    assert not PYTHON_WORDS.search(done.err)


@pytest.mark.usefixtures("files")
def test_a_model_that_holds_a_correction_is_refused_in_words_of_the_command_line(run):
    assert run("fold", "plain.onnx", "map.safetensors", "-o", "once.onnx").code == 0
    refused = run("fold", "once.onnx", "map.safetensors", "-o", "twice.onnx").err
    assert refused.endswith("has a map folded into it already (a map); fold the model that it was made from.\n")
