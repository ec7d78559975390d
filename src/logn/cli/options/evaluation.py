"""The options that `logn evaluate` and `logn compare`, of both tasks, share, and what they are turned into."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import COMMAND_LINE, echo, print_json, text_style
from logn.cli.help_page import PRINTING
from logn.cli.kinds import formerly
from logn.cli.options.choices import complete_methods
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.classes.counts import ClassCounts
    from logn.evaluate.comparison.comparison import Comparison
    from logn.evaluate.comparison.settings import CompareSettings

PROTOCOL, MEASURES, METHODS, INTERVALS = "Protocol", "What is measured", "Methods", "Intervals"


class Format(StrEnum):
    """How a table is written."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


class Protocol(StrEnum):
    """How labels are measured."""

    auto = "auto"
    lvis = "lvis"
    coco = "coco"


def style_of(protocol: Protocol, coco: bool) -> str:
    """The protocol that two options name.

    Example:
        >>> style_of(Protocol.auto, True)
        'coco'
    """
    if coco and protocol is Protocol.lvis:
        raise InputError("Expected one of `--coco` and `--protocol lvis`, but got both.")
    return "coco" if coco else protocol.value


def _option(panel: str, help_line: str, *names: str) -> Any:
    return typer.Option(*names, help=help_line, rich_help_panel=panel)


AnnotationsOption = Annotated[
    Path,
    typer.Option(
        "--annotations",
        "-a",
        help="Ground truth: LVIS or COCO file, YOLO `data.yaml` or VOC folder (`data.yaml:test`).",
    ),
]
ProtocolOption = Annotated[
    Protocol,
    _option(
        PROTOCOL,
        "`lvis`: only classes that were looked for in an image count there; `coco`: every class counts in every image; "
        "`auto`: as the annotations are.",
        "--protocol",
    ),
]
CocoOption = Annotated[bool, _option(PROTOCOL, "Every class counts in every image, as COCO has it.", "--coco")]
MissingClassesOption = Annotated[
    bool,
    _option(PROTOCOL, "Leave out objects of classes that the model does not have.", "--allow-missing"),
]
OnlyPredictedOption = Annotated[
    bool, _option(PROTOCOL, "Leave out annotated images that were not predicted.", "--only-predicted")
]
MinScoreOption = Annotated[
    float,
    _option(PROTOCOL, "Detections with a score of at most this are left out.", "--min-score"),
    formerly("--score-threshold"),
]
ThresholdOption = Annotated[
    float,
    _option(MEASURES, "Your score threshold: what is found there, before and after.", "--threshold"),
    formerly("--at"),
]
NmsOption = Annotated[
    str | None,
    _option(
        PROTOCOL,
        "Which boxes suppress each other: `class-wise`, `class-agnostic` or `none`; a number is the overlap, as "
        "--nms-iou. Default: as the framework of the model does, else class-wise.",
        "--nms",
    ),
]
NmsIouOption = Annotated[
    float | None,
    _option(PROTOCOL, "Overlap above which a box is dropped; default: that of the framework, else 0.5.", "--nms-iou"),
]
MultiLabelOption = Annotated[
    bool | None,
    _option(
        PROTOCOL,
        "Whether a box may be found as several classes; default: as the framework does, else it may.",
        "--multi-label/--best-class",
    ),
]
CapOption = Annotated[int, _option(PROTOCOL, "Detections per image, over all classes; -1 for all.", "--max-detections")]
SourceArgument = Annotated[
    Path,
    typer.Argument(
        help="What `logn predict` wrote; or a file of test logits (.npy, .npz, .safetensors of rows and classes), with "
        "--labels; or a trained image classifier, with --data."
    ),
    formerly("--predictions", "-p"),
    formerly("--logits", "-l"),
    formerly("--model", "-m"),
]
MethodsOption = Annotated[
    str | None,
    typer.Option(
        help="Separated by commas, with options behind a colon: none,logn,norcal:gamma=0.6. Default: recommended (what "
        "`logn correct` takes), logn (the paper's).",
        rich_help_panel=METHODS,
        autocompletion=complete_methods,
    ),
]
StatisticsOption = Annotated[
    Path | None,
    typer.Option(
        "--statistics", "-s", help="What `logn collect` wrote of the training images.", rich_help_panel=METHODS
    ),
]
ImagesOption = Annotated[
    Path | None,
    typer.Option(help="Folder that the image paths start from: with --detector, or with a trained classifier."),
    formerly("--root"),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(help="Values to try, such as margin=-12:4:1 or tau-norm:tau=0:1:0.1.", rich_help_panel=METHODS),
]
SplitOption = Annotated[
    bool,
    typer.Option(
        "--split",
        help="Choose a sweep's value on one half of the images or rows; report on the other.",
        rich_help_panel=METHODS,
    ),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(help="One more method; can be repeated.", rich_help_panel=METHODS, autocompletion=complete_methods),
]
CorrectionsOption = Annotated[
    list[Path] | None,
    typer.Option(help="One more method, as `logn fit` wrote it; can be repeated.", rich_help_panel=METHODS),
]
MismatchOption = Annotated[
    bool,
    typer.Option(
        "--allow-mismatch",
        help="Only warn where a correction or the statistics are of another model.",
        rich_help_panel=METHODS,
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="tau-norm: the weight, .npy or .safetensors.", rich_help_panel=METHODS)
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="Name of the weight in its file; its bias is found beside it.", rich_help_panel=METHODS),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        help="The metric by which a sweep's value is chosen; default AP, for classifiers top-1.",
        rich_help_panel=METHODS,
    ),
]
BootstrapOption = Annotated[
    int, typer.Option(help="Bootstrap draws for the intervals; 0 for none.", rich_help_panel=INTERVALS)
]
ConfidenceOption = Annotated[float, typer.Option(help="Confidence level of the intervals.", rich_help_panel=INTERVALS)]
DrawSeedOption = Annotated[int, typer.Option(min=0, help="Seed of the draws.", rich_help_panel=INTERVALS)]
CountsOption = Annotated[
    Path | None, typer.Option(help="Training counts: annotations in any form, .csv, .tsv, .npy or JSON list.")
]
BoundsOption = Annotated[
    str | None,
    typer.Option(
        help="Group classes by --counts: last rare (few-shot), last common (medium-shot) count, such as 10,100; "
        "default for classifiers 19,100."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        help="Class mix that methods aim at, where they can: uniform, training, or a file of shares.",
        rich_help_panel=METHODS,
    ),
]
FixedOption = Annotated[bool, _option(MEASURES, "Also AP-Fixed, and AP-Pool over its detections.", "--fixed")]
ErrorsOption = Annotated[bool, _option(MEASURES, "Also the kinds of error (TIDE).", "--errors")]
MaskErrorsOption = Annotated[
    bool, _option(MEASURES, "The kinds of error by the overlap of masks instead of boxes.", "--mask-errors")
]
FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="How to print the tables.", rich_help_panel=PRINTING)
]
FolderOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the result as .json, .md, .csv and .tex.")
]


def read_target(text: str | None) -> Any:
    """The class mix that a word or a file stands for; a file is read at once, so that what is wrong with it is said."""
    from logn.calibrators import methods

    return None if text is None else methods.read_target(text)


def decode_options(
    score_threshold: float,
    nms: str | None,
    nms_iou: float | None,
    multi_label: bool | None,
    max_detections: int,
) -> Any:
    """Make the settings of the decoder; what is None, the predictions say."""
    from logn.evaluate.decode.decoder import DecodeSettings

    kind, overlap = parse_nms(nms)
    if overlap is not None and nms_iou is not None:
        raise InputError(f"Expected the overlap once, but got `--nms {nms}` and `--nms-iou {nms_iou:g}`.")
    return DecodeSettings(
        score_threshold=score_threshold,
        nms=kind,
        nms_iou=nms_iou if overlap is None else overlap,
        multi_label=multi_label,
        max_detections=max_detections,
    )


def parse_nms(text: str | None) -> tuple[str | None, float | None]:
    """Read the kind of suppression, or the overlap.

    Example:
        >>> parse_nms("class-agnostic"), parse_nms("0.6")
        (('class-agnostic', None), (None, 0.6))
    """
    from logn.logits.proposals import NMS_KINDS

    if text is None or text in NMS_KINDS:
        return text, None
    try:
        return None, float(text)
    except ValueError:
        kinds = ", ".join(NMS_KINDS)
        raise InputError(f"Expected `--nms` to be one of {kinds}, or an overlap like 0.5, but got {text!r}.") from None


def group_counts(counts: ClassCounts | None, bounds: str | None, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Training counts for the groups, when bounds are given; else the annotations say the groups, where they do."""
    if bounds is None:
        return {}
    if counts is None:
        raise InputError("Expected `--counts` with `--bounds`, but got none.")
    return {"group_counts": counts.aligned_to(names).image_counts}


def parse_bounds(text: str) -> tuple[int, int]:
    """Read the last rare and the last common count.

    Example:
        >>> parse_bounds("5,50")
        (5, 50)
    """
    try:
        low, high = (int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"Expected `--bounds` to be two numbers like 10,100, but got {text!r}.") from None
    if not low < high:
        raise InputError(f"Expected `--bounds` to ascend, but got {text!r}.")
    return low, high


def read_counts(path: Path | None) -> ClassCounts | None:
    """Read training counts; a class without a training image counts as one, since it has no logarithm."""
    from logn.classes.counts import ClassCounts

    return None if path is None else ClassCounts.load(path).at_least(1)


def compare_settings(decode: Any, bounds: str | None, choices: Mapping[str, Any]) -> CompareSettings:
    """Make the settings of a comparison from the options of the command line."""
    from logn.evaluate.comparison.settings import CompareSettings

    return CompareSettings(decode=decode, bounds=None if bounds is None else parse_bounds(bounds), **choices)


def check_numbers(bootstrap: int, confidence: float) -> None:
    """Refuse draws and intervals that make no sense."""
    if bootstrap < 0:
        raise InputError(f"Expected `--bootstrap` to be at least 0, but got {bootstrap}.")
    if not 0 < confidence < 1:
        raise InputError(f"Expected `--confidence` to lie between 0 and 1, but got {confidence:g}.")


def read_methods(listed: str | None, more: list[str], corrections: list[Path]) -> dict[str, Any]:
    """All methods by name: specifications, the default ones where none are listed, and corrections read from files."""
    from logn.calibrators.affine import ClassAffine
    from logn.evaluate.comparison.method_fitting import DEFAULT_METHODS, split_methods

    specs = {spec: spec for spec in (*(split_methods(listed) if listed else DEFAULT_METHODS), *more)}
    return {**specs, **{str(path): ClassAffine.load(path) for path in corrections}}


def make_folder(folder: Path | None) -> None:
    """Make the folder for the results before the work begins."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"Expected `{folder}` to be a folder, but it is a file.")
    if folder is not None:
        from logn.evaluate.comparison.files import check_comparison_folder

        check_comparison_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)


def present(comparison: Comparison, form: Format, folder: Path | None, *, as_json: bool, wide: bool = False) -> None:
    """Print a comparison and, where a folder is given, write it there with the command that made it.

    Below the tables come verdicts, one for each method.
    """
    from logn.evaluate.comparison.tables import write_comparison

    comparison = comparison.made_by(COMMAND_LINE.get())
    if folder is not None:
        comparison = comparison.with_details()
        comparison.save(folder)
    if as_json:
        print_json(comparison.to_dict())
        return
    style = text_style(wide=wide)
    echo(write_comparison(comparison, form.value, style=style), colours=style.colours)
    if form is Format.table and len(comparison.rows) > 1:
        echo("")
        for row in comparison.rows[1:]:
            echo(style.wrap(comparison.verdict(row.name), indent="  "))
