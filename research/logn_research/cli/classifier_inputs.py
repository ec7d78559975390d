"""What a comparison of classifiers needs, from the folder of `logn predict` or from a trained run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.errors import InputError

if TYPE_CHECKING:
    from logn_research.datasets.labelled_images import LabelledImages
    from logn_research.training.classifiers.models import Classifier

Inputs = dict[str, Any]
# In the folder that `logn predict` writes, beside the logits and labels
COUNTS_FILE, STATISTICS_FILE, LAYER_FILE = "class_counts.json", "statistics.safetensors", "class_layer.safetensors"


def inputs_of_predictions(folder: Path) -> Inputs:
    """The arguments of `compare_classification` that lie in a folder; what is not there is left out."""
    from logn.classes.counts import ClassCounts

    for name in ("test_logits.npy", "test_labels.npy"):
        if not (folder / name).is_file():
            raise InputError(
                f"Expected `{folder}` to hold `{name}`, which `logn predict --split test` writes, but it does not."
            )
    found: Inputs = {"logits": folder / "test_logits.npy", "labels": folder / "test_labels.npy"}
    if (folder / STATISTICS_FILE).is_file():
        found["moments"] = folder / STATISTICS_FILE
    if (folder / COUNTS_FILE).is_file():
        found["counts"] = ClassCounts.load(folder / COUNTS_FILE)
    if (folder / LAYER_FILE).is_file():
        found |= _class_layer(folder / LAYER_FILE)
    if (folder / "dev_logits.npy").is_file():
        labels = folder / "dev_labels.npy"
        found["dev"] = (folder / "dev_logits.npy", labels if labels.is_file() else None)
    return found


def _class_layer(path: Path) -> Inputs:
    from logn.logits.dumped import read_array

    return {"weight": read_array(path, "weight"), "bias": read_array(path, "bias")}


@dataclass(frozen=True)
class ClassifierRun:
    """A classifier that `logn train` wrote and the images to measure it on.

    Args:
        model: Folder of the run.
        data: Images, as the training took them.
        root: Folder that the paths of list files start from.
        class_names: One class name a line, for list files.
        device: "auto", "cpu" or "cuda".
    """

    model: Path
    data: Path
    root: Path | None = None
    class_names: Path | None = None
    device: str = "auto"

    def inputs(self, *, dev: bool, advance: Callable[[int], object]) -> Inputs:
        """Run the model over the training, the test and, where they are asked for, the dev images."""
        import numpy as np

        from logn.classes.counts import ClassCounts
        from logn.evaluate.models.open import choose_device
        from logn_research.training.classifiers.classifier_logits import classifier_logits, classifier_statistics
        from logn_research.training.classifiers.train_classifier import load_classifier

        classifier = load_classifier(self.model).to(choose_device(self.device))
        train, test = (self._images(classifier, split) for split in ("train", "test"))
        found: Inputs = {
            "logits": classifier_logits(classifier, test, progress=advance),
            "labels": test.labels,
            "moments": classifier_statistics(classifier, train, progress=advance),
            "counts": ClassCounts(np.asarray(classifier.image_counts, np.float64), names=train.class_names),
            "families": train.families,
        }
        if dev:
            images = self._images(classifier, "dev")
            found["dev"] = (classifier_logits(classifier, images, progress=advance), images.labels)
        if classifier.settings.classifier != "cosine":
            layer = classifier.cls_score
            found |= {name: layer.get_parameter(name).detach().cpu().numpy() for name in ("weight", "bias")}
        return found

    def _images(self, classifier: Classifier, split: str) -> LabelledImages:
        from logn_research.datasets.open_images import open_images

        options = dict(classifier.data_options or {})
        return open_images(self.data, split, root=self.root, class_names=self.class_names, **options)
