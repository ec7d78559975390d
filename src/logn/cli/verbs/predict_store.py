"""How `logn predict` fills a prediction store, in one process or under torchrun, and what it prints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.cli.console import count_of, echo, print_json, print_note, progress
from logn.commands import how_it_runs, kept_words

if TYPE_CHECKING:
    from logn.labels.dataset import DetectionDataset
    from logn.logits.proposals import ProposingDetector


def store_predictions(
    detector: ProposingDetector,
    model: Path,
    dataset: DetectionDataset,
    output: Path,
    how_much: Mapping[str, Any],
    show_progress: bool | None,
    as_json: bool,
) -> bool:
    """Run a detector and say what was written; whether there is more to say, which is the case for one process."""
    from logn.evaluate.models.open import fingerprint_of
    from logn.evaluate.store.predict import match_detector
    from logn.evaluate.store.predict import predict as run_detector
    from logn.evaluate.store.store import PredictionStore

    match = match_detector(detector, dataset.class_names)
    metadata = {
        "model": model.name,
        "model_words": [str(model), *kept_words(how_it_runs(model))],
        "data": dataset.annotation_file.name,
        "images": dataset.images_fingerprint,
        "fingerprint": fingerprint_of(detector),
    }
    share = len(range(int(os.environ.get("RANK", 0)), len(dataset), int(os.environ.get("WORLD_SIZE", 1))))
    run = partial(run_detector, detector, dataset)
    given = {name: value for name, value in how_much.items() if value is not None}
    with progress("Predicting", total=share, shown=show_progress) as advance:
        written = run(output, metadata=metadata, progress=advance, **given)
    if int(os.environ.get("RANK", 0)) > 0:
        return False  # one process speaks for all
    store = PredictionStore(output)
    missing = store.missing(dataset.image_ids).tolist()
    size = sum(file.stat().st_size for file in output.glob("part-*/*.bin"))
    result = {
        "predictions": output,
        "images": len(store),
        "of": len(dataset),
        "run_now": written,
        "missing": missing,
        "proposals": store.num_proposals,
        "columns": store.num_columns,
        "bytes": size,
    }
    if as_json:
        print_json(result)
        return False
    echo(
        f"{output}: {len(store):,} of {len(dataset):,} images ({written:,} run now), {store.num_proposals:,} "
        f"proposals with {store.num_columns:,} logits each, {size / 1e6:,.0f} MB"
    )
    _say_missing(missing)
    if match.describe():
        print_note(match.describe())
    return True


def _say_missing(image_ids: list[int]) -> None:
    """Say which images a store lacks, and how it gets them."""
    if image_ids:
        shown = ", ".join(map(str, image_ids[:5])) + (", …" if len(image_ids) > 5 else "")
        print_note(
            f"Missing: {count_of(len(image_ids), 'image')} ({shown}), of processes that still run or have died; where "
            "none runs any more, the same command completes them."
        )
