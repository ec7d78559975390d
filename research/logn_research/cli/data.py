"""`logn data`: draw the embedded benchmarks, look at a data set, count its classes."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from logn.cli.console import JsonOption, ProgressOption, command, echo, print_json, print_note, verb_group
from logn.cli.help_page import VerbCommand
from logn.cli.kinds import formerly, with_old_spellings
from logn.cli.options import choices as glyph_options
from logn.cli.paths import OverwriteOption, check_output
from logn.errors import InputError, LogNWarning
from logn.evaluate.classification.truth import SHOTS, shot_groups
from logn.labels.sources import are_labels, with_split
from logn_research.datasets.open_images import open_images
from logn_research.datasets.samplers import ImagesOfClasses, make_sampler

data = verb_group("Make and look at long-tailed data, for detectors and classifiers.")


@data.command(cls=VerbCommand)
def glyphs(
    output: glyph_options.FolderOption,
    classes: glyph_options.ClassesOption = 100,
    train: Annotated[int, typer.Option(help="Number of training images.")] = 2400,
    dev: Annotated[int, typer.Option(help="Number of images to choose settings on.")] = 480,
    test: Annotated[int, typer.Option(help="Number of images to report on.")] = 480,
    size: glyph_options.SizeOption = 128,
    seed: glyph_options.SeedOption = 0,
    families: glyph_options.FamiliesOption = True,
    similarity: glyph_options.SimilarityOption = 0.75,
    clutter: Annotated[
        float, typer.Option(help="How many times as many distractors, lines and arcs, 0 to 8; 0 for none.")
    ] = 1.0,
    mask: Annotated[str, typer.Option(help="Masks as `rle` or `polygon`.")] = "rle",
    workers: glyph_options.WorkersOption = 2,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw glyph scenes: a long-tailed detection problem with masks, in LVIS's format.

    Writes images, `train.json`, `dev.json` and `test.json` (federated, as LVIS) and an exhaustive twin of the last two.
    A run that was stopped goes on when it is started again.

    **Examples**

        logn data glyphs -o glyphs

        logn data glyphs -o wide --classes 1203 --train 12000 --workers 8

        logn data glyphs -o crowded --clutter 3
    """
    from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
    from logn_research.datasets.glyphs.settings import GlyphSettings

    settings = GlyphSettings(
        classes=classes,
        train=train,
        dev=dev,
        test=test,
        size=size,
        seed=seed,
        similarity=similarity if families else None,
        masks=_mask_form(mask),
        clutter=clutter,
    )
    images = train + dev + test
    drawn = glyph_options.draw(
        generate_glyph_scenes, output, settings, images=images, workers=workers, shown=progress_bar
    )
    _show({**drawn, **_summary(output / "train.json")}, as_json=as_json)
    if not as_json:
        print_note(f"To train a detector on it: {command('logn', 'train', output, '-o', 'run')}")


@data.command(cls=VerbCommand)
@with_old_spellings
def inspect(
    source: Annotated[
        Path,
        typer.Argument(
            help="An LVIS or COCO JSON file, a YOLO `data.yaml`, a folder of Pascal VOC or of glyph scenes; or images "
            "with one class each: glyph classes, CIFAR's binary version, class folders, a list of `path label` lines."
        ),
    ],
    sampler: Annotated[
        str, typer.Option(help="`random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.")
    ] = "random",
    repeat_threshold: Annotated[
        float,
        typer.Option(help="Share of images below which repeat factor sampling repeats a class."),
        formerly("--threshold"),
    ] = 0.001,
    split: Annotated[str, typer.Option(help="`train`, `dev` or `test`, where the source has several.")] = "train",
    imbalance: Annotated[
        float | None, typer.Option(help="Thin CIFAR or class folders: the first class to the last one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which images thinning keeps.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Count the images, the classes and their groups, and what a sampler makes of them.

    **Examples**

        logn data inspect lvis_v1_train.json --sampler repeat-factor-ceil --json

        logn data inspect ImageNet_LT_train.txt

        logn data inspect cifar-100-binary --imbalance 100 --sampler class-balanced
    """
    if (source / f"{split}.json").is_file():  # the folder of glyph scenes
        source = source / f"{split}.json"
    if source.suffix == ".json" or are_labels(source):
        _show(_summary(with_split(source, split), sampler, repeat_threshold), as_json=as_json)
        return
    _show(summarise_images(source, split, imbalance, seed, sampler, repeat_threshold), as_json=as_json)


@data.command("glyph-classes", cls=VerbCommand)
def glyph_classes(
    output: glyph_options.FolderOption,
    classes: glyph_options.ClassesOption = 100,
    most: Annotated[int, typer.Option(help="Training images of the most frequent class.")] = 500,
    fewest: Annotated[int, typer.Option(help="Training images of the rarest class.")] = 3,
    dev: Annotated[int, typer.Option(help="Images of each class to choose settings on.")] = 20,
    test: Annotated[int, typer.Option(help="Images of each class to report on.")] = 40,
    size: glyph_options.SizeOption = 32,
    seed: glyph_options.SeedOption = 0,
    families: glyph_options.FamiliesOption = True,
    similarity: glyph_options.SimilarityOption = 0.75,
    workers: glyph_options.WorkersOption = 2,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw glyph classes: a long-tailed classification problem, small pictures with one class each.

    Writes one array of images and one of labels for each of `train`, `dev` and `test`, and `classes.json`, which can be
    given as `--counts`. A run that was stopped goes on when it is started again.

    **Examples**

        logn data glyph-classes -o classes

        logn data glyph-classes -o wide --classes 1000 --most 300 --workers 8
    """
    from logn_research.datasets.glyphs.classes import generate_glyph_classes
    from logn_research.datasets.glyphs.settings import GlyphClassSettings

    settings = GlyphClassSettings(
        classes, most, fewest, dev, test, size, seed, similarity=similarity if families else None
    )
    drawn = glyph_options.draw(
        generate_glyph_classes, output, settings, images=settings.images, workers=workers, shown=progress_bar
    )
    _show({**drawn, **summarise_images(output)}, as_json=as_json)
    if not as_json:
        print_note(f"To train a classifier on it: {command('logn', 'train', output, '-o', 'run')}")


@data.command(cls=VerbCommand)
def preview(
    annotations: Annotated[Path, typer.Argument(help="As `logn train` takes them: LVIS, COCO, YOLO, VOC.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The PNG file to write.")],
    images: Annotated[Path | None, typer.Option(help="Folder of the images; by default that of the file.")] = None,
    columns: Annotated[int, typer.Option(min=1, help="Pictures in a row.")] = 4,
    rows: Annotated[int, typer.Option(min=1, help="Rows of pictures.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Which pictures are drawn.")] = 0,
    colours: Annotated[int | None, typer.Option(help="Use so few colours, for a small file.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw some images with their boxes and masks; rare classes red, common ones yellow, frequent ones blue.

    **Example**

        logn data preview glyphs -o sheet.png
    """
    from logn.labels.dataset import DetectionDataset
    from logn.labels.image_file import write_image
    from logn_research.datasets.contact_sheet import draw_contact_sheet

    check_output(output, annotations, overwrite=overwrite)
    file = with_split(annotations, "train")
    if annotations.is_dir() and not are_labels(annotations):
        file = annotations / "train.json"
    sheet = draw_contact_sheet(DetectionDataset(file, images), rows=rows, columns=columns, seed=seed)
    write_image(output, sheet, colours=colours)
    _show({"file": output, "height": sheet.shape[0], "width": sheet.shape[1]}, as_json=as_json)


@data.command(cls=VerbCommand)
def federate(
    annotations: Annotated[Path, typer.Argument(help="A COCO JSON file, or an LVIS one that is exhaustive.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The LVIS JSON file to write.")],
    negatives: Annotated[
        int, typer.Option(min=-1, help="Images per class on which it is verified absent; -1 for all without it.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Which images.")] = 0,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw federated labels, as LVIS has them, from exhaustive ones: see how your numbers depend on the protocol.

    All boxes stay. Each class is verified absent on some images only, and detections of it on the others without it
    are not counted. With the same seed the images of a smaller number are among those of a larger one. Crowd regions
    are left out; their class is marked as not exhaustive on the image.

    **Examples**

        logn data federate instances_val2017.json -o federated.json --negatives 8

        logn compare store -s stats.safetensors -a federated.json --counts train.json --methods recommended,logn
    """
    from logn_research.datasets.federated_labels import federate_file

    check_output(output, annotations, overwrite=overwrite)
    summary = federate_file(annotations, output, None if negatives < 0 else negatives, seed=seed)
    _show(
        {
            "file": output,
            "images": summary.images,
            "classes": summary.classes,
            "boxes": summary.boxes,
            "crowd regions left out": summary.crowds,
            "verified absent": summary.negatives,
            "share of verified pairs": round(summary.verified, 4),
        },
        as_json=as_json,
    )


def _mask_form(mask: str) -> Literal["rle", "polygon"]:
    if mask == "rle":
        return "rle"
    if mask == "polygon":
        return "polygon"
    raise InputError(f"Expected `--mask` to be one of ('rle', 'polygon'), but got {mask!r}.")


def _summary(annotations: Path, sampler: str | None = None, threshold: float = 0.001) -> dict[str, Any]:
    from logn.labels.dataset import DetectionDataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # of dropped and clipped boxes, which are told below
        dataset = DetectionDataset(annotations)
    groups = Counter(category.frequency or "none" for category in dataset.categories)
    result: dict[str, Any] = {
        "images": len(dataset),
        "classes": dataset.num_classes,
        "objects": int(dataset.instance_counts.sum()),
        "groups": {group: groups[group] for group in ("r", "c", "f", "none") if groups[group]},
        "fewest images of a class": int(dataset.image_counts.min()),
        "most images of a class": int(dataset.image_counts.max()),
        "dropped boxes": dataset.dropped_boxes,
        "clipped boxes": dataset.clipped_boxes,
    }
    return result if sampler is None else {**result, **describe_sampler(sampler, dataset, threshold)}


def _show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({key.replace(" ", "_"): value for key, value in result.items()})
        return
    for key, value in result.items():
        if key != "label distribution":  # one number a class: for programs, or for the report
            echo(f"{key}: {value}")


def summarise_images(
    source: Path,
    split: str = "train",
    imbalance: float | None = None,
    seed: int = 0,
    sampler: str | None = None,
    threshold: float = 0.001,
) -> dict[str, Any]:
    """Count the images of a split, its classes and their groups by the training images."""
    images = open_images(source, split, imbalance=imbalance, seed=seed)
    training = images if split == "train" else open_images(source, imbalance=imbalance, seed=seed)
    groups = shot_groups(training.image_counts)
    result: dict[str, Any] = {
        "images": len(images),
        "classes": images.num_classes,
        "groups": {shot: int((groups == shot).sum()) for shot in SHOTS},
        "classes without images": int((images.image_counts == 0).sum()),
        "fewest images of a class": int(images.image_counts.min()),
        "most images of a class": int(images.image_counts.max()),
    }
    return result if sampler is None else {**result, **describe_sampler(sampler, images, threshold)}


def describe_sampler(name: str, images: ImagesOfClasses, threshold: float) -> dict[str, Any]:
    """Say what a sampler makes of the images: how many an epoch shows, and of which classes."""
    sampler = make_sampler(name, images, threshold=threshold)
    return {
        "sampler": name,
        "images of an epoch": round(float(sampler.expected_repeats().sum()), 1),
        "label distribution": sampler.label_distribution(),
    }
