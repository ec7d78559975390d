"""What people type before they know the command: done where it is clear, else told what to type instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from logn.cli.option_words import spelling
from logn.commands import command
from logn.errors import InputError

MODEL_FILES = (".pt", ".pth", ".onnx", ".engine", ".plan", ".tflite", ".torchscript")
PICKLES = (".pt", ".pth")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
# Other words for our verbs.
VERBS = {
    **dict.fromkeys(("calibrate", "normalize", "normalise", "fix", "run", "debias", "convert", "export"), "correct"),
    **dict.fromkeys(("record", "stats", "statistics", "extract"), "collect"),
    **dict.fromkeys(("eval", "val", "validate", "test", "score"), "evaluate"),
    **dict.fromkeys(("detect", "infer", "inference"), "predict"),
    **dict.fromkeys(("benchmark",), "bench"),
    **dict.fromkeys(("plot", "draw"), "figure"),
    **dict.fromkeys(("html", "page", "show", "view"), "report"),
    **dict.fromkeys(("threshold", "tune"), "thresholds"),
    **dict.fromkeys(("example", "examples", "tutorial", "quickstart"), "demo"),
}
# Other words for our options; the first of the right side that the command has is meant.
OPTIONS = {
    **dict.fromkeys(
        ("--img", "--imgs", "--image", "--image-dir", "--image-folder", "--source", "--folder"), ("--images",)
    ),
    **dict.fromkeys(("--out", "--out-dir", "--output-dir", "--save", "--dest", "--project"), ("--output",)),
    **dict.fromkeys(("--ann", "--anns", "--annotation", "--gt", "--ground-truth"), ("--annotations", "--data")),
    **dict.fromkeys(("--data", "--dataset", "--yaml", "--val", "-d"), ("--data", "--annotations")),
    **dict.fromkeys(("--annotations", "-a"), ("--data",)),
    **dict.fromkeys(("--conf", "--conf-thres", "--confidence-threshold", "--score", "--thresh"), ("--threshold",)),
    **dict.fromkeys(("--imgsz", "--img-size", "--image-size", "--input-size"), ("--size",)),
    **dict.fromkeys(("--gpu", "--cuda", "--gpus"), ("--device",)),
    **dict.fromkeys(("--limit", "--max", "--num-images", "-n"), ("--max-images",)),
    **dict.fromkeys(("--stats", "--stat"), ("--statistics",)),
    **dict.fromkeys(("--batch-size", "--bs"), ("--batch",)),
    **dict.fromkeys(("--iou", "--iou-thres"), ("--nms-iou",)),
    **dict.fromkeys(("--names", "--classes"), ("--class-names",)),
}
# Words of the option parser, and ours.
PARSER_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
    "is not a valid integer": "is no whole number",
    "is not a valid float": "is no number",
}
# Options that name what is the first argument here.
MODEL_OPTIONS = ("--model", "--weights", "--checkpoint", "--model-path", "-m")
# What to write, where nobody says it; and where a second argument belongs.
OUTPUTS = {"collect": "stats.safetensors", "fit": "affine.safetensors", "apply": "corrected.npy"}
OUTPUTS |= {"fold": "corrected.onnx", "predict": "predictions", "train": "run", "merge": "all.safetensors"}
SECOND = {"correct": "--images", "predict": "--data", "compare": "--annotations", "evaluate": "--annotations"}
SECOND |= {"thresholds": "--annotations", "report": "--output"}


def rewritten(arguments: Sequence[str]) -> list[str]:
    """The arguments as the parser takes them, where they can mean one thing only.

    Example:
        >>> rewritten(["help", "correct"]), rewritten(["version"]), rewritten(["fit", "--json"])
        (['correct', '--help'], ['--version'], ['fit', '--json'])
    """
    words = list(arguments)
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    if words in (["version"], ["-v"], ["-V"]):
        return ["--version"]
    return words


def refuse_verb(word: str, verbs: Iterable[str]) -> None:
    """Say what to type in the place of a verb that is none."""
    path = Path(word)
    if path.suffix.lower() in MODEL_FILES or path.exists():
        told = f"to correct a model type `{correct_command(path)}`"
    else:
        near = difflib.get_close_matches(word, verbs, 1)
        meant = VERBS.get(word.lower()) or (near[0] if near else None)
        told = f"did you mean `logn {meant}`? See `logn {meant} --help`" if meant else "`logn --help` lists them"
    raise InputError(f"Expected a verb behind `logn`, but got `{word}`; {told}.")


def correct_command(model: Path, *more: str) -> str:
    """The command that corrects a model, with further options.

    Example:
        >>> correct_command(Path("best.pt"))
        'logn correct best.pt --images train/ -o corrected.pt --trust'
    """
    trust = ["--trust"] if model.suffix.lower() in PICKLES else []
    return command("logn", "correct", model, "--images", "train/", "-o", f"corrected{model.suffix}", *trust, *more)


def refuse_model_as_predictions(source: Path) -> None:
    """Say how to get predictions where a model was named."""
    if source.suffix.lower() in MODEL_FILES:
        trust = ["--trust"] if source.suffix.lower() in PICKLES else []
        predict = command("logn", "predict", source, "--data", "val.json", "-o", "predictions", *trust)
        raise InputError(
            f"Expected predictions, but `{source}` looks like a model: run it once, by `{predict}`, and name "
            "`predictions` here."
        )


def refuse_model_as_statistics(path: Path) -> None:
    """Say how to get statistics where a model was named."""
    if path.suffix.lower() in MODEL_FILES:
        raise InputError(
            f"Expected statistics that `logn collect` wrote, but `{path}` looks like a model; to see what would "
            f"be done to it, and nothing written, type `{correct_command(path, '--dry-run')}`."
        )


def holds_pictures(folder: Path) -> bool:
    """Whether there are images in a folder, or in one of its folders."""
    return folder.is_dir() and any(path.suffix.lower() in PICTURES for path in folder.rglob("*"))


def usage_sentence(error: Any) -> str:
    """What is wrong with the options and what to type, from an error of the option parser."""
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    if context is not None:
        command, path = context.command, str(context.command_path)
        if kind == "NoSuchOption":
            return _unknown_option(str(error.option_name), command, path)
        if kind == "MissingParameter" and getattr(error, "param", None) is not None:
            return _missing(error.param, path)
        if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \(([^ )]+)", str(error.format_message())):
            return _extra(extra[1], command, path)
    message = str(error.format_message()).rstrip()
    for theirs, ours in PARSER_WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _unknown_option(word: str, command: Any, path: str) -> str:
    known = {name for item in command.params if not getattr(item, "hidden", False) for name in item.opts}
    arguments = [spelling(item) for item in command.params if item.param_type_name == "argument"]
    meant = next((name for name in OPTIONS.get(word, ()) if name in known), None)
    near = difflib.get_close_matches(word, sorted(known), 1)
    sentence = f"Expected an option of `{path}`, but got `{word}`"
    if meant is not None:
        return f"{sentence}; did you mean `{meant}`?"
    if word in MODEL_OPTIONS and arguments:
        return f"{sentence}; {arguments[0]} stands without an option: `{path} {arguments[0]} …`."
    return f"{sentence}; did you mean `{near[0]}`?" if near else f"{sentence}."


def _missing(parameter: Any, path: str) -> str:
    help_line = str(getattr(parameter, "help", "") or "").replace("`", "")
    what = f": {help_line[:1].lower()}{help_line[1:]}" if help_line else "."
    example = OUTPUTS.get(path.split()[-1]) if parameter.name == "output" else None
    typed = f" Add `-o {example}`, or another name." if example else ""
    return f"Expected `{spelling(parameter)}`, but got none{what}{typed}"


def _extra(word: str, command: Any, path: str) -> str:
    known = {name for item in command.params for name in item.opts}
    sentence = f"Expected no further argument of `{path}`, but got `{word}`"
    if f"--{word}" in known:
        return f"{sentence}; did you mean `--{word}`?"
    option = SECOND.get(path.split()[-1])
    return f"{sentence}; did you mean `{option} {word}`?" if option in known else f"{sentence}."
