"""`logn data`: draw the embedded benchmarks, look at a data set, count its classes, keep a classifier's logits."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.base.files import check_new
from logn.cli.console import print_note, progress
from logn.cli.options import Device, Json, Overwrite
from logn.errors import LogNWarning
from logn_research.cli.shared import Images, Progress, show, verb_group

data = verb_group("Make and look at long-tailed data, for detectors and classifiers.")

Folder = Annotated[
    Path, typer.Option("--output", "-o", metavar="PATH", help="Folder to write; made if it is not there.")
]
Classes = Annotated[int, typer.Option(metavar="N", help="Number of classes, up to 1,203.")]
Size = Annotated[int, typer.Option(metavar="N", help="Side of an image in pixels.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Everything follows from it.")]
Distinct = Annotated[bool, typer.Option("--distinct", help="Glyphs as unlike as possible: no look-alikes.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Number of processes; the pictures don't depend on it.")]


@data.command()
def glyphs(
    output: Folder,
    classes: Classes = 100,
    train: Annotated[int, typer.Option(metavar="N", help="Number of training images.")] = 2400,
    dev: Annotated[int, typer.Option(metavar="N", help="Number of images to choose settings on.")] = 480,
    test: Annotated[int, typer.Option(metavar="N", help="Number of images to report on.")] = 480,
    size: Size = 128,
    seed: Seed = 0,
    distinct: Distinct = False,
    clutter: Annotated[
        float, typer.Option(metavar="N", help="How many times as many distractors, lines and arcs, 0 to 8.")
    ] = 1.0,
    workers: Workers = 2,
    shown: Progress = None,
    json: Json = False,
) -> None:
    """Draw glyph scenes: a long-tailed detection problem with masks, in LVIS's format.

    Writes images, `train.json`, `dev.json` and `test.json` (federated, as LVIS) and an exhaustive twin of the last two.
    Example: `logn data glyphs -o glyphs`.
    """
    from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
    from logn_research.datasets.glyphs.settings import GlyphSettings

    settings = GlyphSettings(
        classes, train, dev, test, size, seed, similarity=None if distinct else 0.75, clutter=clutter
    )
    drawn = _draw(generate_glyph_scenes, output, settings, train + dev + test, workers, shown)
    show({**drawn, **count_boxes(output / "train.json")}, as_json=json)
    print_note(f"To train a detector on it: logn train {output} -o run")


@data.command("glyph-classes")
def glyph_classes(
    output: Folder,
    classes: Classes = 100,
    most: Annotated[int, typer.Option(metavar="N", help="Training images of the most frequent class.")] = 500,
    fewest: Annotated[int, typer.Option(metavar="N", help="Training images of the rarest class.")] = 3,
    dev: Annotated[int, typer.Option(metavar="N", help="Images of each class to choose settings on.")] = 20,
    test: Annotated[int, typer.Option(metavar="N", help="Images of each class to report on.")] = 40,
    size: Size = 32,
    seed: Seed = 0,
    distinct: Distinct = False,
    workers: Workers = 2,
    shown: Progress = None,
    json: Json = False,
) -> None:
    """Draw glyph classes: a long-tailed classification problem, small pictures with one class each.

    Writes one array of images and one of labels for each of `train`, `dev` and `test`, and `classes.json`, which can be
    given as `--counts`. Example: `logn data glyph-classes -o classes`.
    """
    from logn_research.datasets.glyphs.classes import generate_glyph_classes
    from logn_research.datasets.glyphs.settings import GlyphClassSettings

    similarity = None if distinct else 0.75
    settings = GlyphClassSettings(classes, most, fewest, dev, test, size, seed, similarity=similarity)
    drawn = _draw(generate_glyph_classes, output, settings, settings.images, workers, shown)
    show({**drawn, **count_images(output)}, as_json=json)
    print_note(f"To train a classifier on it: logn train {output} -o run")


def _draw(generate: Any, folder: Path, settings: Any, images: int, workers: int, shown: bool | None) -> dict[str, Any]:
    started = time.monotonic()
    with progress("Drawing", total=images, shown=shown) as advance:
        generate(folder, settings, workers=workers, progress=advance)
    return {"folder": folder, "seconds": round(time.monotonic() - started, 1)}


@data.command()
def inspect(
    source: Annotated[Path, typer.Argument(help="As `logn train` takes it.")],
    sampler: Annotated[str, typer.Option(metavar="NAME", help="As `logn train --sampler`.")] = "random",
    repeat_threshold: Annotated[float, typer.Option(metavar="N", help="As `logn train --repeat-threshold`.")] = 0.001,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="train, dev or test, where the source has several.")
    ] = "train",
    json: Json = False,
) -> None:
    """Count the images, the classes and their groups, and what a sampler makes of them.

    Example: `logn data inspect lvis_v1_train.json --sampler repeat-factor-ceil --json`.
    """
    from logn.data.label_sources import are_labels, with_split

    if (source / f"{split}.json").is_file():  # the folder of glyph scenes
        source = source / f"{split}.json"
    if source.suffix == ".json" or are_labels(source):
        show(count_boxes(with_split(source, split), sampler, repeat_threshold), as_json=json)
    else:
        show(count_images(source, split, sampler, repeat_threshold), as_json=json)


@data.command()
def preview(
    annotations: Annotated[Path, typer.Argument(help="As `logn train` takes them: LVIS, COCO, YOLO, VOC.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="The PNG file to write.")],
    images: Images = None,
    columns: Annotated[int, typer.Option(min=1, metavar="N", help="Pictures in a row.")] = 4,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of pictures.")] = 3,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which pictures are drawn.")] = 0,
    colours: Annotated[int | None, typer.Option(metavar="N", help="Use so few colours, for a small file.")] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw some images with their boxes and masks; rare classes red, common ones yellow, frequent ones blue.

    Example: `logn data preview glyphs -o sheet.png`.
    """
    from logn_research.datasets.contact_sheet import draw_contact_sheet, write_image
    from logn_research.datasets.sample_dataset import SampleDataset, find_annotations

    check_new(output, overwrite=overwrite)
    dataset = SampleDataset(find_annotations(annotations), images)
    sheet = draw_contact_sheet(dataset, rows=rows, columns=columns, seed=seed)
    write_image(output, sheet, colours=colours)
    show({"file": output, "height": sheet.shape[0], "width": sheet.shape[1]}, as_json=json)


@data.command()
def federate(
    annotations: Annotated[Path, typer.Argument(help="A COCO JSON file, or an LVIS one that is exhaustive.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="The LVIS JSON file to write.")],
    negatives: Annotated[
        int,
        typer.Option(
            min=-1, metavar="N", help="Images per class on which it is verified absent; -1 for all without it."
        ),
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which images.")] = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw federated labels, as LVIS has them, from exhaustive ones: see how your numbers depend on the protocol.

    All boxes stay. Each class is verified absent on some images only, and detections of it on the others without it
    are not counted. With the same seed the images of a smaller number are among those of a larger one. Crowd regions
    are left out; their class is marked as not exhaustive on the image.

    Example: `logn data federate instances_val2017.json -o federated.json --negatives 8`.
    """
    from logn_research.datasets.federated_labels import federate_file

    check_new(output, overwrite=overwrite)
    summary = federate_file(annotations, output, None if negatives < 0 else negatives, seed=seed)
    counts = {"images": summary.images, "classes": summary.classes, "boxes": summary.boxes}
    absent = {"verified absent": summary.negatives, "share of verified pairs": round(summary.verified, 4)}
    show({"file": output, **counts, "crowd regions left out": summary.crowds, **absent}, as_json=json)


@data.command()
def logits(
    run: Annotated[Path, typer.Argument(help="Folder of a classifier that `logn train` wrote.")],
    source: Annotated[
        Path, typer.Option("--data", "-d", metavar="PATH", help="The images, as the training took them.")
    ],
    output: Folder,
    images: Images = None,
    class_names: Annotated[
        Path | None, typer.Option(metavar="PATH", help="One class name a line, for list files.")
    ] = None,
    splits: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="NAME", help="train, dev or test; can be repeated. Default: train and test."),
    ] = None,
    device: Device = "auto",
    shown: Progress = None,
    json: Json = False,
) -> None:
    """Run an image classifier once and keep its logits and labels, its statistics and what rivals need.

    Example: `logn data logits runs/softmax -d classes -o logits`, then `logn compare logits/test_logits.npy --labels
    logits/test_labels.npy -s logits/statistics.safetensors --counts logits/class_counts.json`.
    """
    from logn.models.hints import choose_device
    from logn_research.datasets.labelled_images import open_images
    from logn_research.training.classifiers import write_logits
    from logn_research.training.train import check_training_images, load_classifier

    classifier = load_classifier(run).to(choose_device(device))
    names = splits or ["train", "test"]
    opened = {name: open_images(source, name, root=images, class_names=class_names) for name in names}
    if "train" in opened:
        check_training_images(opened["train"], classifier.image_counts)
    with progress("Predicting", total=sum(map(len, opened.values())), shown=shown) as advance:
        files = write_logits(classifier, opened, output, progress=advance)
    show({"output": output, "files": [file.name for file in files]}, as_json=json)


def count_boxes(annotations: Path, sampler: str | None = None, threshold: float = 0.001) -> dict[str, Any]:
    """Count images, classes and objects of annotations."""
    from logn_research.datasets.sample_dataset import SampleDataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # of dropped and clipped boxes, which are told below
        dataset = SampleDataset(annotations)
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
    return result | _sampled(sampler, dataset, threshold)


def count_images(
    source: Path, split: str = "train", sampler: str | None = None, threshold: float = 0.001
) -> dict[str, Any]:
    """Count the images of a split, its classes and their groups by the training images."""
    from logn.measure.classification.truth import SHOTS, shot_groups
    from logn_research.datasets.labelled_images import open_images

    images, training = open_images(source, split), open_images(source)
    groups = shot_groups(training.image_counts)
    result: dict[str, Any] = {
        "images": len(images),
        "classes": images.num_classes,
        "groups": {shot: int((groups == shot).sum()) for shot in SHOTS},
        "classes without images": int((images.image_counts == 0).sum()),
        "fewest images of a class": int(images.image_counts.min()),
        "most images of a class": int(images.image_counts.max()),
    }
    return result | _sampled(sampler, images, threshold)


def _sampled(name: str | None, images: Any, threshold: float) -> dict[str, Any]:
    from logn_research.datasets.samplers import make_sampler

    if name is None:
        return {}
    sampler = make_sampler(name, images, threshold=threshold)
    epoch = round(float(sampler.expected_repeats().sum()), 1)
    return {"sampler": name, "images of an epoch": epoch, "label distribution": sampler.label_distribution()}
