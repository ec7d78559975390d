"""The steps of the instrument as commands: `python -m logn_research.strong --help`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import logn
from logn_research.strong import more_classes, public, tables
from logn_research.strong.features import DETECTORS, cache_features
from logn_research.strong.measure import measure_folder

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)

Data = Annotated[Path, typer.Option(help="Folder with images/ and the annotation files of train, dev and test.")]
Root = Annotated[Path, typer.Option(help="Folder of all results.")]
Detector = Annotated[str, typer.Argument(help=f"One of {', '.join(DETECTORS)}.")]
# Heads of which the landscape of margins is measured, on dev.
LANDSCAPE_HEADS = ("softmax-linear-random-0", "softmax-cosine-random-0")


@app.command()
def features(detector: Detector, model: Path, data: Data, root: Root) -> None:
    """Run a public ONNX detector once and keep proposals and RoI features."""
    cache_features(model, DETECTORS[detector], data, root / detector)


@app.command()
def heads(detector: Detector, data: Data, root: Root) -> None:
    """Train the heads on cached features, and write their statistics and predictions."""
    from logn_research.strong.heads import SIGMOID_HEADS, SOFTMAX_HEADS, train_heads

    train_heads((*SOFTMAX_HEADS, *SIGMOID_HEADS), data, root / detector)


@app.command("public")
def public_detector(
    name: str,
    model: Path,
    data: Data,
    root: Root,
    like: str | None = None,
    class_names: Annotated[Path | None, typer.Option(help="A name per line, where the file names no classes.")] = None,
) -> None:
    """Run a public detector as it is: `ssdlite` with its weights, or an ONNX file."""
    names = class_names.read_text().split("\n")[:80] if class_names else None
    options: dict[str, Any] = {"like": like, "class_names": names}
    given = {key: value for key, value in options.items() if value is not None}
    detector = public.ssdlite(model) if name == "ssdlite" else logn.detector(model, **given)
    public.write_public(detector, data, root / "public" / "heads" / name)


@app.command()
def measure(data: Data, root: Root) -> None:
    """Measure all methods on all heads and public detectors, under both kinds of labels."""
    counts = logn.ClassCounts.load(data / "train.json")
    for folder in sorted(root.glob("*/heads/*")):
        if not (folder / "statistics.safetensors").exists():
            continue
        is_public = folder.parts[-3] == "public"
        if not is_public:
            measure_folder(folder, data, counts, split="dev", with_landscape=folder.name in LANDSCAPE_HEADS)
        measure_folder(folder, data, None if is_public else counts, split="test")


@app.command("tables")
def print_tables(
    measured_in: Annotated[Path, typer.Argument(help="Folder of all results, or a file that -o wrote.")],
    output: Annotated[Path | None, typer.Option("-o")] = None,
) -> None:
    """Print the tables of the page, and what the rule chooses on dev; write all measurements to a file."""
    measured = tables.read(measured_in)
    print(tables.page(measured))
    if output is not None:
        output.write_text(json.dumps(measured, separators=(",", ":")))


@app.command("more-classes")
def with_more_classes(
    measured_in: Annotated[Path, typer.Argument(help="The folder of Tiny-ImageNet, or a file that -o wrote.")],
    model: Annotated[Path | None, typer.Argument(help="YOLOv8n as an ONNX file.")] = None,
    root: Annotated[Path, typer.Option(help="Folder of mosaics, features and heads.")] = Path("runs/more-classes"),
    output: Annotated[Path | None, typer.Option("-o")] = None,
) -> None:
    """Compare the paper's equation and half of the prior on 50, 100 and 200 classes; print the tables."""
    if model is None:
        print(more_classes.page(json.loads(measured_in.read_text())))
        return
    for measured in more_classes.run(measured_in, model, root):
        print(more_classes.page(measured), flush=True)
        if output is not None:
            output.write_text(json.dumps(measured, indent=1))


@app.command()
def why(detector: Detector, head: str, data: Data, root: Root) -> None:
    """Print why a margin raises AP, on the dev images of one head."""
    from logn_research.strong.why import explain

    for labels in ("dev.json", "dev_exhaustive.json"):
        print(labels, json.dumps(explain(root / detector / "heads" / head, data / labels), indent=1))


if __name__ == "__main__":
    app()
