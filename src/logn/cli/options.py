"""The options that verbs share, each declared once, and what their values are turned into.

The same flag has the same help and the same meaning in every verb; a test compares them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from logn.base.files import atomic_path, check_new, refuse_inputs, require_place
from logn.cli.console import command
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.data.class_counts import ClassCounts
    from logn.models.hints import Hints as Hints
    from logn.models.images import ImageSource
else:
    Hints = Any  # named in the signatures of verbs, which are read without loading any model code


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last method of a list, for the shell.

    Example:
        >>> complete_methods("nor"), complete_methods("loga,p")
        (['norcal'], ['loga,p2p'])
    """
    from logn.methods.catalog import METHODS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_presets(incomplete: str) -> list[str]:
    """Complete the name of a preset, for the shell.

    Example:
        >>> complete_presets("yolo")
        ['yolov5', 'yolox']
    """
    from logn.models.preprocessing import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """A `typer.Option` with a short word for its value, so that its help fits one line."""
    return typer.Option(*names, help=help, metavar=metavar, **more)


def _at_least(least: float, most: float = float("inf")) -> Any:
    """A check of a number; Typer's own ranges fill half of the help page."""

    def check(value: float | None) -> float | None:
        if value is not None and not least <= value <= most:
            upper = "" if most == float("inf") else f" and at most {most:g}"
            raise typer.BadParameter(f"expected at least {least:g}{upper}, but got {value:g}")
        return value

    return check


OUTPUT = option("--output", "-o", metavar="PATH", help="Where to write the result.")
DATA = option("--data", "-d", "-a", metavar="PATH", help="COCO, LVIS or YOLO labels; or a folder per class.")

Output = Annotated[Path, OUTPUT]
OptionalOutput = Annotated[Path | None, OUTPUT]
Overwrite = Annotated[bool, option("--overwrite", help="Replace the output if it exists.")]
Json = Annotated[bool, option("--json", help="Print the result as one JSON object.")]
Verbose = Annotated[bool, option("--verbose", "-v", help="Print all details.")]

Images = Annotated[
    Path | None, option("--images", metavar="DIR", help="Folder of images, or where the image paths of --data start.")
]
Data = Annotated[Path, DATA]
OptionalData = Annotated[Path | None, DATA]
Masks = Annotated[
    str | None, option("--masks", metavar="MODEL", help="Also mask AP: runs the predicted model again, for masks.")
]
MaskResults = Annotated[
    Path | None, option("--mask-results", metavar="DIR", help="With --masks: LVIS results files, one per method.")
]
Labels = Annotated[
    Path | None, option("--labels", metavar="FILE", help="Classifiers: class of each row (.npy, .json, .csv, .txt).")
]
TrainLogits = Annotated[
    Path | None, option("--train-logits", metavar="FILE", help="Classifiers: training logits, instead of statistics.")
]
Key = Annotated[str | None, option("--key", metavar="NAME", help="Name of the array in .npz and .safetensors files.")]
ClassNames = Annotated[
    Path | None, option("--class-names", metavar="FILE", help="Class names, if the model has none: .txt or .json.")
]
Counts = Annotated[
    Path | None, option("--counts", metavar="FILE", help="Training counts: labels as for --data, .csv or .json.")
]
Statistics = Annotated[
    Path | None, option("--statistics", "-s", metavar="FILE", help="Statistics of training images (logn collect).")
]

Method = Annotated[
    str | None,
    option(
        "--method",
        "-m",
        metavar="NAME",
        help="Such as logn or norcal:gamma=0.6; or a file from logn fit.",
        autocompletion=complete_methods,
    ),
]
Methods = Annotated[
    str | None,
    option(
        "--methods",
        metavar="LIST",
        help="Such as logn:margin=0,norcal; or files from logn fit.",
        autocompletion=complete_methods,
    ),
]
Target = Annotated[
    str | None, option("--target", metavar="FILE", help="Class mix to aim at: uniform, training, or a file.")
]
Strength = Annotated[
    float | None, option("--strength", metavar="N", help="How far to correct: from 0, not at all, to 1, fully.")
]
THRESHOLDS = option("--thresholds", metavar="AIM", help="f1, precision=0.9, recall=0.9, fppi=1; or JSON or a file.")
Thresholds = Annotated[str, THRESHOLDS]
OptionalThresholds = Annotated[str | None, THRESHOLDS]
At = Annotated[float, option("--at", metavar="N", help="Your score threshold.", callback=_at_least(0, 1))]
Deployment = Annotated[
    Path | None,
    option("--deployment", metavar="PATH", help="Images, or statistics, of its deployment."),
]
Bootstrap = Annotated[
    int, option("--bootstrap", metavar="N", help="Draws for the intervals; 0 for none.", callback=_at_least(0))
]

Like = Annotated[
    str | None,
    option(
        "--like",
        metavar="NAME",
        help="How images are prepared: yolox, detr, … or a .json file.",
        autocompletion=complete_presets,
    ),
]
Size = Annotated[str | None, option("--size", metavar="HxW", help="Input size: 480x640, or 640; default: the model's.")]
Background = Literal["first", "last", "none"]
BackgroundOption = Annotated[
    Background | None,
    option("--background", metavar="PLACE", help="Background class: first, last, none; default: the model's."),
]
Activation = Literal["softmax", "sigmoid"]
ActivationOption = Annotated[
    Activation | None,
    option("--activation", metavar="NAME", help="softmax or sigmoid, if the model does not say."),
]
Tensor = Annotated[
    list[str] | None, option("--tensor", metavar="NAME", help="ONNX: tensor of logits, if it is not found; repeatable.")
]
Layer = Annotated[
    str | None, option("--layer", metavar="PATH", help="Torch: module of the class logits, if it is not found.")
]
MaxImages = Annotated[
    int | None,
    option("--max-images", metavar="N", help="Use at most N images, spread evenly.", callback=_at_least(1)),
]
Batch = Annotated[int | None, option("--batch", metavar="N", help="Images per forward pass.", callback=_at_least(1))]
Device = Annotated[str, option("--device", metavar="NAME", help="auto, cpu or cuda.")]
Trust = Annotated[bool, option("--trust", help="Allow a .pt file: a pickle, which can run any code.")]

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="An .onnx, .pt, Hugging Face folder, or module:function."),
]
Predictions = Annotated[
    Path, typer.Argument(metavar="PREDICTIONS", help="Folder from logn predict, or a file of test logits.")
]

_MODEL_FILES = (".pt", ".pth", ".onnx", ".engine", ".plan", ".tflite", ".torchscript")


def background_index(place: Background | None) -> int | None:
    """The column of the background.

    Example:
        >>> background_index("first"), background_index("last"), background_index(None)
        (0, -1, None)
    """
    return None if place is None else {"first": 0, "last": -1, "none": None}[place]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width.

    Example:
        >>> parse_size("480x640"), parse_size("640")
        ((480, 640), (640, 640))
    """
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise InputError(f"Expected `--size` to be like 480x640 or 640, but got {text!r}.")
    return int(sides[0]), int(sides[-1])


# The fields of `logn.Hints` as options, with their defaults.
HINTS: dict[str, tuple[Any, Any]] = {
    "like": (Like, None),
    "size": (Size, None),
    "background": (BackgroundOption, None),
    "activation": (ActivationOption, None),
    "tensor": (Tensor, None),
    "layer": (Layer, None),
    "class_names": (ClassNames, None),
    "device": (Device, "auto"),
    "trust": (Trust, False),
}


def hints_of(**values: Any) -> Hints:
    """What the options say about a model; those that were not given keep their defaults.

    Example:
        >>> hints_of(size="480x640", background="last").size
        (480, 640)
    """
    from logn.models.hints import Hints as Hints

    parsers: dict[str, Callable[[Any], Any]] = {"size": parse_size, "background": background_index}
    return Hints(**{name: parsers.get(name, _same)(value) for name, value in values.items()})


def with_hints(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb an option for each field of its parameter `hints`.

    Args:
        without: Fields that this verb has no option for.
    """
    names = [name for name in HINTS if name not in without]

    def expand(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**values: Any) -> None:
            hints = hints_of(**{name: values.pop(name) for name in names})
            verb(**values, hints=hints)

        parameters = []
        for parameter in inspect.signature(verb, eval_str=True).parameters.values():
            if parameter.name != "hints":
                parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
                continue
            for name in names:
                kind, default = HINTS[name]
                parameters.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=kind))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return expand


def _same(value: Any) -> Any:
    """A value as it is, but no empty list where an option was not given."""
    return None if value == [] else value


def split_methods(text: str) -> list[str]:
    """Split a list of methods at its commas; a piece with `=` and no `:` is an option of the method before it.

    Example:
        >>> split_methods("none,logn:margin=0,use_std=false,loga")
        ['none', 'logn:margin=0,use_std=false', 'loga']
    """
    specs: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            raise InputError(f"`--methods` has an empty entry between commas: {text!r}.")
        if "=" not in piece or ":" in piece.partition("=")[0]:
            specs.append(piece)
        elif specs:
            specs[-1] += ("," if ":" in specs[-1] else ":") + piece
        else:
            raise InputError(f"`--methods` must begin with the name of a method, not with an option: {piece!r}.")
    return specs


def method_spec(method: str | None, strength: float | None = None) -> str:
    """The specification of one method, with the strength as one of its options.

    Example:
        >>> method_spec(None), method_spec("logn:margin=0", 0.5)
        ('recommended', 'logn:margin=0,strength=0.5')
    """
    spec = method or "recommended"
    return spec if strength is None else f"{spec}{',' if ':' in spec else ':'}strength={strength!r}"


def read_method(spec: str) -> Any:
    """A specification as it is; the correction, where it names a file of `logn fit`."""
    from logn.methods.affine import ClassAffine

    return ClassAffine.load(spec) if spec.endswith(".safetensors") else spec


def read_counts(path: Path | None) -> ClassCounts | None:
    """Training counts; a class without a training image counts as one, since 0 has no logarithm."""
    from logn.data.class_counts import ClassCounts

    return None if path is None else ClassCounts.load(path).at_least(1)


def read_target(text: str | None) -> Any:
    """The class mix that a word or a file stands for."""
    from logn.methods import catalog

    return None if text is None else catalog.read_target(text)


def training_images(images: Path | None, data: Path | None) -> ImageSource:
    """The folder of images, or the images that annotations list; their labels are not used."""
    if data is None:
        if images is None:
            raise InputError("Pass training images: --images FOLDER or --data FILE.")
        return images
    from logn.data.dataset import open_dataset
    from logn.data.label_sources import with_split

    return open_dataset(with_split(data, "train"), images).image_paths()


def looks_like_model(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the suffix of a model file."""
    return Path(path).suffix.lower() in _MODEL_FILES


def refuse_model(path: Path, *wanted: str) -> None:
    """Refuse a model where something made from it is expected.

    Args:
        path: What the user named.
        wanted: What the verb takes, in the plural, and the command that makes it from the model.
    """
    if looks_like_model(path):
        trust = ["--trust"] if path.suffix.lower() in (".pt", ".pth") else []
        what, *words = wanted
        line = command("logn", words[0], path, *words[1:], *trust)
        other = (
            " For a classifier, --data is a folder per class, -o a .safetensors file." if words[0] == "predict" else ""
        )
        raise InputError(f"`{path}` is a model, but this command takes {what}. Make them with `{line}`.{other}")


def check_output(path: Path, *inputs: str | os.PathLike[str] | None, overwrite: bool = False) -> None:
    """Refuse, before any work, a path that cannot be written or that exists; an input is never replaced.

    Args:
        path: Where to write.
        inputs: The files and folders that are read; other texts, such as the name of a method, are passed over.
        overwrite: Whether the user wants an existing file to be replaced.

    Example:
        >>> check_output(Path("no-such-folder/stats.safetensors"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The folder of `no-such-folder/stats.safetensors` does not exist: create `no-such-folder`
        first.
    """
    require_place(path)
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"The folder `{path.parent}` is not writable: choose another one.")
    refuse_inputs([path], with_parts(inputs))
    check_new(path, overwrite=overwrite)


def save(path: Path, write: Callable[[Path], object], overwrite: bool) -> None:
    """Let `write` make a file under a temporary name; one that appeared at `path` during the run stays, and is named.

    Args:
        path: Where to write.
        write: Writes to the path that it gets.
        overwrite: Whether the user wants an existing file to be replaced.
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        write(temporary)


def with_parts(inputs: Iterable[str | os.PathLike[str] | None]) -> Iterator[str | os.PathLike[str] | None]:
    """The inputs, and the files that belong to models among them."""
    for source in inputs:
        yield source
        if source is not None and Path(source).suffix.lower().startswith((".onnx", ".py:")):
            from logn.models.write import files_of

            yield from files_of(source)


def listed(paths: Sequence[str | os.PathLike[str]], shown: int = 3) -> str:
    """Some names in words, for a message.

    Example:
        >>> listed([Path("a.png"), Path("b.png"), Path("c.png")], shown=1)
        '`a.png` and 2 more'
    """
    named = ", ".join(f"`{path}`" for path in paths[:shown])
    return named if len(paths) <= shown else f"{named} and {len(paths) - shown:,} more"
