"""correct: collect, judge, fold, prove and write, in one call, for a model in any kind of file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.methods.catalog import TRAINING, fit, needs, parse
from logn.methods.checks import checked_share
from logn.methods.recommend import NONE, RECOMMENDED, SOFTMAX_ASSUMED, Recommendation, recommend
from logn.methods.sampled_scores import NewThreshold, class_scores, threshold_after
from logn.models.hints import Hints
from logn.models.images import ImageFiles, ImageSource, choose_images
from logn.models.open import open_correctable
from logn.models.opened import Advance, Model, Stages, Traits, ignore
from logn.models.write import check_suffix, check_target, copy_model, write_model
from logn.statistics.doubts import row_checks, sanity_checks
from logn.statistics.head import ASSUMED
from logn.statistics.moments import ClassMoments

if TYPE_CHECKING:
    from logn.models.write import Proof
    from logn.thresholds.points import FoldedPoints

# Images that the proof runs on.
PROOF_IMAGES = 4
# Fewer images of the deployment are refused: their class mix is chance.
FEWEST_DEPLOYMENT = 20


@dataclass(frozen=True)
class ScoreChange:
    """What a correction does to the scores, seen on the recorded row sample.

    Attributes:
        threshold: Which score threshold to use now, and for which class mix; None for classifiers.
        other_best: Share of the rows, weighted by their foreground score, whose top class changes.
        is_classification: Whether each image is one row, of which the top class counts.
    """

    threshold: NewThreshold | None
    other_best: float
    is_classification: bool


def score_change(
    moments: ClassMoments, affine: ClassAffine, threshold: float, deployment: ClassMoments | None = None
) -> ScoreChange | None:
    """What `affine` does to the scores at `threshold`; None without a row sample.

    Args:
        moments: The statistics of the model.
        affine: The correction.
        threshold: The user's score threshold.
        deployment: Statistics of the same model over images of the deployment.

    Example:
        >>> from logn.statistics.head import Head
        >>> moments = ClassMoments(Head(2, activation="sigmoid"), sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 2)) - 2)
        >>> change = score_change(moments, ClassAffine([1, 1], [0, 1]), 0.5)
        >>> change.threshold.use > 0.5
        True
    """
    if len(moments.sample) == 0:
        return None
    activation = moments.head.settled(affine.background).activation or ASSUMED
    before, after = (class_scores(moments, part, activation) for part in (None, affine))
    weight = before.sum(axis=1) * moments.scored_sample()[2]
    changed = after.argmax(axis=1) != before.argmax(axis=1)
    return ScoreChange(
        threshold=threshold_after(affine, moments, threshold, deployment=deployment),
        other_best=float(weight @ changed / max(float(weight.sum()), np.finfo(np.float64).tiny)),
        is_classification=activation == "softmax" and affine.background is None,
    )


@dataclass(frozen=True)
class Correction:
    """What `correct` found and did.

    Attributes:
        model: The model, as the user names it.
        output: The corrected model, or a copy if there was nothing to correct; None if nothing was written.
        traits: Framework, preprocessing and kind of file.
        images: Number of images that it ran over.
        unreadable: Images that were left out.
        moments: The statistics, one per stage.
        recommendation: What `logn.recommend` says of them.
        method: The method of the correction; None if there was nothing to correct.
        maps: The maps, one per stage.
        change: What they do to the scores.
        proof: How far the corrected model is from the map of the old one; None if there was nothing to correct.
        files: All files and folders that were written.
        doubts: What looks wrong with the statistics.
        thresholds: The thresholds per class that were folded with the maps; None without.
    """

    model: str
    output: Path | None
    traits: Traits
    images: int
    unreadable: tuple[Path, ...]
    moments: tuple[ClassMoments, ...]
    recommendation: Recommendation
    method: str | None = None
    maps: tuple[ClassAffine, ...] = ()
    change: ScoreChange | None = None
    proof: Proof | None = None
    files: tuple[Path, ...] = ()
    doubts: tuple[str, ...] = ()
    thresholds: FoldedPoints | None = None

    @property
    def layer(self) -> str:
        """The class layer; the modules of all stages."""
        return ", ".join(str(part.head.layer) for part in self.moments)

    @property
    def num_classes(self) -> int:
        """Number of classes, without the background and unused columns."""
        return self.moments[0].num_classes

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        first, head = self.moments[0], self.moments[0].head
        return {
            "model": self.model,
            "output": self.output,
            "framework": self.traits.framework,
            "preprocessing": self.traits.preprocessing,
            "layer": self.layer,
            "num_classes": self.num_classes,
            "class_names": None if head.class_names is None else list(head.class_names),
            "activation": head.activation,
            "background": head.background,
            "population": head.population,
            "images": self.images,
            "unreadable": list(self.unreadable),
            "rows": int(first.count.max()),
            "recommendation": self.recommendation.to_dict(),
            "method": self.method,
            "change": None if self.change is None else asdict(self.change),
            "proof": None if self.proof is None else asdict(self.proof),
            "files": list(self.files),
            "warnings": list(self.doubts),
        }


def correct(
    model: Any,
    images: ImageSource,
    output: str | os.PathLike[str] | None = None,
    *,
    method: str | ClassAffine = RECOMMENDED,
    counts: ClassCounts | npt.ArrayLike | None = None,
    thresholds: Any = None,
    labels: Any = None,
    label_images: str | os.PathLike[str] | None = None,
    at: float = DEFAULT_AT,
    deployment: ImageSource | None = None,
    max_images: int | None = None,
    like: Any = None,
    trust: bool = False,
    overwrite: bool = False,
    progress: Advance = ignore,
    **hints: Any,
) -> Correction:
    '''Correct a model by one pass over unlabelled training images, and write it anew.

    The model runs over the images, `logn.recommend` judges the statistics of its logits, and if there is something to
    correct, the correction is folded into the weights of its class layer. The corrected model is written in the same
    kind of file under a temporary name, read back, compared with the old one on some of the images, and only then gets
    its name. Statistics and map are written beside it (into it, if it is a folder).

    Args:
        model: An `.onnx` file; a folder in the form of transformers' `save_pretrained`; a `.pt` file of Ultralytics,
            with `trust`; "package.module:function" or "file.py:function", a function of yours that returns a torch
            model; or a torch model. The last two are written as state dicts in `.safetensors`.
        images: A folder of training images, a list of files, or a list of functions that return one RGB image each.
            Labels are not needed. Files that cannot be read are left out, with a warning.
        output: Where to write. None writes nothing: the result says what would be done.
        method: "recommended" changes nothing where there is little to correct ("recommended:force=true" does); "logn"
            (the paper's) or another method of `logn.methods` is always applied; or a map to fold, such as that of
            `logn.OperatingPoints`.
        counts: Training counts of the classes, for the methods that need them, such as "norcal:gamma=0.6".
        thresholds: Fold a threshold per class with the correction, so that `at` acts as all of them: what to choose
            them for ("f1", "precision=0.9" or "recall=0.8" in each class, "fppi=1" over all classes), or thresholds
            that exist, as for `logn.thresholds.fold_thresholds`, which then apply to the corrected scores.
        labels: Labelled images to choose thresholds on: COCO, LVIS or YOLO. Given thresholds need none.
        label_images: Folder that the image paths of `labels` start from; by default that of the labels.
        at: The score threshold that you use the model with.
        deployment: Unlabelled images from where the model is used, a folder or list as `images`; 100 suffice. The new
            threshold, and the common shift of a sigmoid head, then hold for their class mix instead of that of
            training. Not with `thresholds`, which come from labels.
        max_images: Take at most this many images, spread evenly.
        like: How images are prepared, for ONNX files and functions that do not say it: a preset such as "yolox", a JSON
            file with fields of `Preprocessing`, or a `Preprocessing`.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        overwrite: Replace the files of `output`; a folder is never replaced.
        progress: Called with the number of images whenever some are done.
        hints: Rarely needed: `size`, `activation`, `device`; for ONNX files `background`, `tensor`, `class_names`; for
            torch models `layer`. See `logn.Hints`.

    Returns:
        What was found and done. If there is nothing to correct, its `method` is None and `output` is a copy: the file
        or folder byte for byte, the state dict of a model that has none.

    Example:
        >>> import tempfile, onnx.parser, numpy as np
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 1, 1] x) => (float[N, 3] y)
        ... <float[3, 3] w = {2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0}> { f = Flatten(x) y = Gemm(f, w) }"""
        >>> onnx.save_model(onnx.parser.parse_model(text), str(folder / "model.onnx"))
        >>> for place, pixel in enumerate(np.random.default_rng(0).integers(0, 256, (20, 3), np.uint8)):
        ...     Image.fromarray(pixel.reshape(1, 1, 3)).save(folder / f"{place}.png")
        >>> done = correct(folder / "model.onnx", folder, folder / "new.onnx", method="logn", size=(1, 1))
        >>> done.num_classes, done.method, done.proof.holds, [file.name for file in done.files]
        (3, 'logn', True, ['new.affine.safetensors', 'new.statistics.safetensors', 'new.onnx'])
    '''
    target = None if output is None else Path(output)
    checked_share("at", at)
    name, options = parse(method) if isinstance(method, str) else ("", {})
    _check_counts(name, options, counts)
    if thresholds is not None:
        from logn.correction.thresholds import check_goal, with_thresholds

        check_goal(thresholds, labels)
    items = choose_images(images, max_images)
    deployed = None if deployment is None else _deployment_images(deployment, thresholds)
    if target is not None:
        check_target(model, target, overwrite=overwrite)
    source = open_correctable(model, Hints(like=like, trust=trust, **hints))
    if target is not None:
        check_suffix(source, target)
    traits = source.traits  # refuses a model that does not say how its images are prepared
    source.check()
    # Before the pass over the training images, which may take an hour: these may be refused.
    there = None if deployed is None else _collect_deployment(source, deployed, progress)
    files = ImageFiles(items)
    moments = source.collect(files, progress=progress)
    with _quiet():
        judged = [recommend(part, threshold=at) for part in moments]
    # That of the first stage that has something to correct.
    recommendation = next((part for part in judged if part.method != NONE), judged[0])
    is_assumed = moments[0].head.settled().activation is None
    found = Correction(
        model=source.name,
        output=None,
        traits=traits,
        images=len(items) - len(files.unreadable),
        unreadable=tuple(item for item in files.unreadable if isinstance(item, Path)),
        moments=moments,
        recommendation=recommendation,
        doubts=(*([SOFTMAX_ASSUMED] if is_assumed else []), *sanity_checks(moments[0]), *row_checks(moments[0])),
    )
    is_left_alone = recommendation.method == NONE and name == RECOMMENDED and not options.get("force", False)
    if is_left_alone and thresholds is None:
        copied = () if target is None else copy_model(source, target, overwrite=overwrite)
        return replace(found, output=target, files=copied)
    maps = _maps(method, moments, recommendation.threshold, counts, there)
    applied = method if isinstance(method, str) else method.method or "the given map"
    points: FoldedPoints | None = None
    if thresholds is not None:
        points = with_thresholds(source, moments, maps[0], thresholds, at, labels, label_images)
        maps = (points.affine,)
        applied = points.affine.method or "thresholds"
    proof, written = write_model(
        source,
        maps,
        target,
        files.first(PROOF_IMAGES),
        sides={"statistics": moments, "affine": maps},
        overwrite=overwrite,
        class_factors=None if points is None else points.factors,
    )
    return replace(
        found,
        output=target,
        method=applied,
        maps=maps,
        change=score_change(moments[0], maps[0], recommendation.threshold, None if there is None else there[0]),
        proof=proof,
        files=written,
        thresholds=points,
    )


def _deployment_images(source: ImageSource, thresholds: Any) -> ImageFiles:
    """The images of the deployment, if they are enough and of use."""
    if thresholds is not None:
        raise InputError("`deployment` is for one threshold over all classes: leave it out beside `thresholds`.")
    files = ImageFiles(choose_images(source))
    _check_enough(len(files.items))
    return files


def _check_enough(count: int) -> None:
    """Refuse few images, whose class mix is chance: the threshold for the class mix of training is no worse."""
    if count < FEWEST_DEPLOYMENT:
        raise InputError(
            f"`deployment` has {count:,} images that can be read, too few to find a threshold on: pass at least "
            f"{FEWEST_DEPLOYMENT}, better 100, or leave it out."
        )


def _collect_deployment(source: Model, files: ImageFiles, progress: Advance) -> Stages:
    """Statistics of the model over the images of the deployment."""
    moments = source.collect(files, progress=progress)
    _check_enough(len(files.items) - len(files.unreadable))
    return moments


def _check_counts(name: str, options: Mapping[str, Any], counts: Any) -> None:
    """Refuse, before the pass, a method without the counts that it needs, and counts that it has no use for."""
    needed = () if not name else needs(name)
    for what in needed:
        if what == "counts" and counts is None:
            raise InputError(f"The method `{name}` needs the training counts: pass `counts`.")
        if what not in ("counts", "moments", "num_columns"):
            raise InputError(
                f"The method `{name}` needs `{what}`, which is not read here: make the map by `logn fit`, and pass its "
                "file as the method."
            )
    if counts is not None and "counts" not in needed and options.get("target") != TRAINING:
        raise InputError(f"`counts` does not apply to {f'`{name}`' if name else 'a given map'}; leave it out.")


def _maps(
    method: str | ClassAffine,
    moments: Sequence[ClassMoments],
    threshold: float,
    counts: Any,
    deployment: Stages | None = None,
) -> tuple[ClassAffine, ...]:
    """The map of each stage: fitted, or the given one, if the model has one stage and as many columns."""
    if isinstance(method, str):
        spec, there = parse(method).with_options(threshold=threshold), deployment or [None] * len(moments)
        with _quiet():
            return tuple(fit(spec, part, counts, deployment=other) for part, other in zip(moments, there, strict=True))
    if len(moments) > 1:
        raise InputError(
            f"The model has {len(moments)} sets of class logits, but a given map fits one; pass the name of a method, "
            "which is fitted to each set."
        )
    columns = moments[0].num_columns
    if method.num_columns != columns:
        raise InputError(
            f"The map has {method.num_columns} columns, but the model has {columns}; fit it to statistics of this "
            "model."
        )
    for sentence in () if method.head is None else method.head.fits(moments[0].head, "the map"):
        raise InputError(f"{sentence}; fit it to statistics of this model.")
    return (method,)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings: the result has the doubts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)
        yield
