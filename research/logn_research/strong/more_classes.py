"""Does the paper's equation gain on half of the prior with more classes? Mosaics of Tiny-ImageNet, 50 to 200 classes.

The instrument is that of the package: frozen features of a public detector, class heads with long-tailed labels. An
image is a mosaic of `SIDE` x `SIDE` pictures, so that it shows several classes and federated labels make sense.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import logn
from logn.data.class_counts import frequency_groups
from logn.measure.comparison import CompareSettings
from logn_research.strong import tables
from logn_research.strong.features import DETECTORS, cache_features, read_split
from logn_research.strong.measure import METRICS, methods

DETECTOR = "yolov8n-384"
SPLITS = ("train", "test")
SIDE, TILE, PICTURE = 4, 96, 64  # pictures along a mosaic; their side there and in the files, in pixels
MOST, FEWEST = 500, 5  # training pictures of the most frequent and of the rarest class
CLASSES = (200, 50, 100)
LAYERS = ("cosine", "linear")
ITERATIONS = 600
NEGATIVES: dict[str, int | None] = {"0": 0, "2": 2, "10": 10, "all": None}  # classes verified absent, of an image
SHOWN, ENDS = ("0", "10", "all"), ("0", "all")  # of these what the tables show
METHODS = ("logn", "logn, square root of std", "mean", "half prior", "prior", "norcal", "loga")

Picture = tuple[Path, tuple[int, int, int, int], int]  # file, corners of the object, category


def pictures(source: Path, num_classes: int, seed: int = 0) -> dict[str, list[Picture]]:
    """The thinned training pictures and half of the validation pictures of evenly chosen classes, both shuffled.

    Args:
        source: The folder of Tiny-ImageNet.
        num_classes: How many of its classes; the first one has `MOST` training pictures, the last one `FEWEST`.
        seed: Of the order of classes, which is the same for every `num_classes`, and of the pictures.
    """
    known = sorted(source.joinpath("wnids.txt").read_text().split())
    order = np.random.default_rng(seed).permutation(len(known))
    chosen = [known[place] for place in order[:: len(known) // num_classes][:num_classes]]
    counts = np.geomspace(MOST, FEWEST, num_classes).round().astype(int)
    generator = np.random.default_rng((seed, num_classes))
    train: list[Picture] = []
    for category, (name, count) in enumerate(zip(chosen, counts, strict=True), 1):
        rows = (source / "train" / name / f"{name}_boxes.txt").read_text().splitlines()
        folder = source / "train" / name / "images"
        drawn = generator.permutation(len(rows))[:count]
        train.extend(_picture(folder, rows[row].split(), category) for row in drawn)
    test = []
    rows = (source / "val" / "val_annotations.txt").read_text().splitlines()
    for row in rows[1::2]:
        file, name, *corners = row.split()
        if name in chosen:
            test.append(_picture(source / "val" / "images", [file, *corners], chosen.index(name) + 1))
    return {"train": _shuffled(train, generator), "test": _shuffled(test, generator)}


def _picture(folder: Path, words: list[str], category: int) -> Picture:
    left, top, right, bottom = (int(word) for word in words[1:])
    return folder / words[0], (left, top, right + 1, bottom + 1), category


def _shuffled(items: list[Picture], generator: np.random.Generator) -> list[Picture]:
    return [items[place] for place in generator.permutation(len(items))]


def write_mosaics(found: Mapping[str, list[Picture]], num_classes: int, data: Path) -> None:
    """Write the mosaics of both splits, and their labels in the form of LVIS with every class verified everywhere."""
    (data / "images").mkdir(parents=True, exist_ok=True)
    counts = np.bincount([category for *_, category in found["train"]], minlength=num_classes + 1)[1:]
    groups = frequency_groups(counts).tolist()
    categories = [{"id": i, "name": f"class {i}", "frequency": group} for i, group in enumerate(groups, 1)]
    for split, items in found.items():
        images, annotations = [], list[dict[str, Any]]()
        for number, start in enumerate(range(0, len(items), SIDE * SIDE), 1):
            canvas, side = Image.new("RGB", (SIDE * TILE, SIDE * TILE), "grey"), SIDE * TILE
            for place, (file, corners, category) in enumerate(items[start : start + SIDE * SIDE]):
                at = place % SIDE * TILE, place // SIDE * TILE
                with Image.open(file) as opened:
                    canvas.paste(opened.convert("RGB").resize((TILE, TILE), Image.Resampling.BILINEAR), at)
                left, top, right, bottom = (TILE / PICTURE * value for value in corners)
                box = [at[0] + left, at[1] + top, right - left, bottom - top]
                about = {"id": len(annotations) + 1, "image_id": number, "category_id": category}
                annotations.append({**about, "bbox": box, "area": box[2] * box[3], "iscrowd": 0, "segmentation": []})
            canvas.save(data / "images" / f"{split}{number}.jpg", quality=95)
            images.append({"id": number, "file_name": f"{split}{number}.jpg", "width": side, "height": side})
        content = federate({"images": images, "annotations": annotations, "categories": categories}, None)
        (data / f"{split}.json").write_text(json.dumps(content))


def federate(content: Mapping[str, Any], negatives: int | None, seed: int = 0) -> dict[str, Any]:
    """Exhaustive labels as LVIS would have them: each class verified absent on `negatives` images, or on all.

    All boxes stay. The images of a smaller number are among those of a larger one.

    Example:
        >>> content = {
        ...     "images": [{"id": 1}, {"id": 2}, {"id": 3}],
        ...     "categories": [{"id": 5}, {"id": 9}],
        ...     "annotations": [{"id": 1, "image_id": 2, "category_id": 5, "bbox": [0, 0, 4, 4]}],
        ... }
        >>> [image["neg_category_ids"] for image in federate(content, 1)["images"]]
        [[5], [], [9]]
        >>> [image["neg_category_ids"] for image in federate(content, None)["images"]]
        [[5, 9], [9], [5, 9]]
    """
    present = {(entry["image_id"], entry["category_id"]) for entry in content["annotations"]}
    absent: dict[int, list[int]] = {image["id"]: [] for image in content["images"]}
    for place, category in enumerate(sorted(entry["id"] for entry in content["categories"])):
        candidates = [image for image in sorted(absent) if (image, category) not in present]
        for image in np.random.default_rng((seed, place)).permutation(candidates)[:negatives].tolist():
            absent[image].append(category)
    images = [
        {**image, "neg_category_ids": absent[image["id"]], "not_exhaustive_category_ids": []}
        for image in content["images"]
    ]
    return {**content, "images": images}


def measure_head(folder: Path, data: Path) -> dict[str, Any]:
    """AP and its parts of each method by the number of verified negatives, and by how much the equation is ahead."""
    moments = logn.ClassMoments.load(folder / "statistics.safetensors")
    maps = methods(moments, logn.ClassCounts.load(data / "train.json"))
    content = read_split(data, "test")
    share = len(content["images"]) / len(content["categories"])  # images of a class for one class of an image
    settings = CompareSettings(num_bootstrap=0, report_images=0)
    result: dict[str, Any] = {}
    for name, negatives in NEGATIVES.items():
        labels = federate(content, None if negatives is None else round(negatives * share))
        rows = logn.compare(folder / "test", labels, {key: maps[key] for key in METHODS}, settings=settings).rows
        result[name] = {row.name: {key: round(float(row[key]), 6) for key in METRICS} for row in rows}
        for row in rows:
            point = row.recall[0.25]
            result[name][row.name] |= {"recall": point.recall, "rare recall": point.groups["r"], "found": point.found}
        by_class = {row.name: row.per_class for row in rows}
        ahead = by_class["logn"] - by_class["half prior"]
        error = np.nanstd(ahead, ddof=1) / np.sqrt(np.isfinite(ahead).sum())
        result[name]["logn"]["ahead of half prior"] = [float(np.nanmean(ahead)), float(1.96 * error)]
    return result


def run(source: Path, model: Path, root: Path) -> Iterator[dict[str, Any]]:
    """Make what is not there yet; after each head give all that was measured, by head and number of classes."""
    from logn_research.strong.heads import HeadSpec, train_heads

    measured: dict[str, Any] = {}
    for layer in LAYERS:
        for num_classes in CLASSES:
            data, folder = root / "data" / str(num_classes), root / str(num_classes)
            if not (data / "test.json").exists():
                write_mosaics(pictures(source, num_classes), num_classes, data)
            cache_features(model, DETECTORS[DETECTOR], data, folder, SPLITS)
            spec = HeadSpec(layer)
            train_heads((spec,), data, folder, iterations=ITERATIONS, splits=SPLITS[1:])
            output = folder / "heads" / spec.name / "more-classes.json"
            if not output.exists():
                output.write_text(json.dumps(measure_head(output.parent, data)))
            measured.setdefault(layer, {})[str(num_classes)] = json.loads(output.read_text())
            yield measured


def page(measured: Mapping[str, Any]) -> str:
    """The tables of the page: change of AP, how far the equation is ahead of half of the prior, and parts of AP."""
    heads = {
        f"{layer}, {count}": measured[layer][count] for layer in measured for count in sorted(measured[layer], key=int)
    }
    most = {layer: found[max(found, key=int)] for layer, found in measured.items()}
    parts = {(layer, metric): found for layer, found in most.items() for metric in ("APr", "APc", "APf")}
    gains, groups = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for name in ("none", *METHODS):
        label = tables.LABELS.get(name, name)
        gains.append((label, *(_cells(found, name, "AP", SHOWN) for found in heads.values())))
        groups.append((label, *(_cells(found, name, metric, ENDS) for (_, metric), found in parts.items())))
    ahead = []
    for head, found in heads.items():
        values = [[100 * value for value in found[key]["logn"]["ahead of half prior"]] for key in NEGATIVES]
        ahead.append((head, *(f"{mean:+.2f} ± {wide:.2f}" for mean, wide in values)))
    shown = {
        "AP": tables.markdown(("method", *heads), gains),
        "The equation less half of the prior": tables.markdown(("head", *(f"{k} negatives" for k in NEGATIVES)), ahead),
        "Parts": tables.markdown(("method", *(f"{layer}, {metric}" for layer, metric in parts)), groups),
    }
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in shown.items())


def _cells(found: Mapping[str, Any], name: str, metric: str, keys: tuple[str, ...]) -> str:
    values = [
        100 * found[key][name][metric] if name == "none" else tables.gain(found[key], name, metric) for key in keys
    ]
    return " | ".join(f"{value:.1f}" if name == "none" else f"{value:+.1f}" for value in values)
