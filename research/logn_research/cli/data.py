"""`logn data`: draw the embedded benchmarks, keep a classifier's logits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import print_note, progress
from logn.cli.options import Device, Json
from logn_research.cli.shared import Images, Progress, show, verb_group

data = verb_group("Draw long-tailed data, for detectors and classifiers.")

Folder = Annotated[
    Path, typer.Option("--output", "-o", metavar="PATH", help="Folder to write; made if it is not there.")
]
Classes = Annotated[int, typer.Option(metavar="N", help="Number of classes, up to 1,203.")]
Size = Annotated[int, typer.Option(metavar="N", help="Side of an image in pixels.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Everything follows from it.")]
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

    settings = GlyphSettings(classes, train, dev, test, size, seed)
    drawn = _draw(generate_glyph_scenes, output, settings, train + dev + test, workers, shown)
    show(drawn, as_json=json)
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

    settings = GlyphClassSettings(classes, most, fewest, dev, test, size, seed)
    drawn = _draw(generate_glyph_classes, output, settings, settings.images, workers, shown)
    show(drawn, as_json=json)
    print_note(f"To train a classifier on it: logn train {output} -o run")


def _draw(generate: Any, folder: Path, settings: Any, images: int, workers: int, shown: bool | None) -> dict[str, Any]:
    started = time.monotonic()
    with progress("Drawing", total=images, shown=shown) as advance:
        generate(folder, settings, workers=workers, progress=advance)
    return {
        "folder": folder,
        "images": images,
        "classes": settings.classes,
        "seconds": round(time.monotonic() - started, 1),
    }


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
