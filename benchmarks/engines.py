"""What float16 and int8 do to rare classes, before and after a correction, in OpenVINO, LiteRT and onnxruntime.

A classifier that `logn train` trained on drawn glyph classes is exported as it is and with a correction folded in, in
each precision, and run on the test images. "after" applies the same map to the logits of the quantised plain model, as
an engine's user can where only the int8 file exists. Needs the environment of `make test-engines`:

    logn data glyph-classes -o classes && logn train classes -o run
    .venv-engines/bin/python benchmarks/engines.py classes run -o docs/results/engines.json
"""

from __future__ import annotations

import argparse
import copy
import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logn_research.datasets.labelled_images import open_images
from logn_research.training.batches import as_batch, middle
from logn_research.training.classifiers import classifier_statistics
from logn_research.training.train import load_classifier

import logn
from logn.measure.classification.metrics import classification_metrics

EXAMPLE = Path(__file__).parents[1] / "examples" / "engines.py"
PRECISIONS = ("float32", "float16", "int8")
METRICS = ("top-1", "many", "medium", "few")
BATCH = 50
CALIBRATION_BATCHES = 6


def batches_of(images: Any, model: Any, places: np.ndarray) -> list[torch.Tensor]:
    size, resize = model.settings.image_size, model.settings.resize
    prepared = np.stack([middle(images.image(int(place)), size, resize) for place in places])
    return list(as_batch(prepared).float().split(BATCH))


def measure(classes: Path, run: Path, methods: list[str]) -> dict[str, Any]:
    model = load_classifier(run)
    train, test = open_images(classes, "train"), open_images(classes, "test")
    moments = classifier_statistics(model, train)
    maps = {method: logn.methods.fit(method, moments, activation="softmax") for method in methods}
    shown = batches_of(test, model, np.arange(len(test) // BATCH * BATCH))
    labels = np.asarray(test.labels)[: len(shown) * BATCH]
    spread = np.linspace(0, len(train) - 1, CALIBRATION_BATCHES * BATCH).astype(int)
    calibration = batches_of(train, model, np.random.default_rng(0).permutation(spread))
    networks = {"none": model}
    for method, affine in maps.items():
        networks[method] = copy.deepcopy(model)
        logn.fold(networks[method], networks[method].logit_layer, affine)
    rows = []
    for engine, (export, suffix) in runpy.run_path(str(EXAMPLE))["ENGINES"].items():
        for precision in PRECISIONS:
            logits = {}
            for name, network in networks.items():
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / f"model{suffix}"
                    engine_run = export(network.eval(), shown[0], file, precision, calibration)
                    logits[name] = np.concatenate([engine_run(batch)[0] for batch in shown]).astype(np.float64)
            found = {("none", "-"): logits["none"]}
            found |= {(method, "before"): logits[method] for method in methods}
            found |= {(method, "after"): affine(logits["none"]) for method, affine in maps.items()}
            for (method, when), values in found.items():
                scores = classification_metrics(values, labels, model.image_counts)
                kept = {name: round(100 * float(scores[name]), 2) for name in METRICS}
                rows.append({"engine": engine, "precision": precision, "correction": method, "folded": when, **kept})
                print(json.dumps(rows[-1]), flush=True)
    return {
        "classifier": {"model": model.settings.model, "classes": len(model.image_counts), "test_images": len(labels)},
        "training_images": {"most": int(max(model.image_counts)), "fewest": int(min(model.image_counts))},
        "calibration_images": len(spread),
        "versions": versions(),
        "rows": rows,
    }


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("openvino", "nncf", "ai-edge-litert", "litert-torch", "onnxruntime")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", type=Path, help="what `logn data glyph-classes` wrote")
    parser.add_argument("run", type=Path, help="what `logn train` wrote")
    parser.add_argument("--methods", default="recommended,logn")
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    found = measure(chosen.classes, chosen.run, chosen.methods.split(","))
    chosen.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
