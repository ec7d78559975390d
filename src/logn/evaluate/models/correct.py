"""correct: collect, judge, fold, prove and write, in one call, for a model in any kind of file."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine
from logn.calibrators.checks import checked_share
from logn.calibrators.methods import fit, parse
from logn.calibrators.recommend import NONE, RECOMMENDED, Recommendation, recommend
from logn.deploy.onnx_fold import Proof
from logn.errors import InputError, LogNWarning
from logn.evaluate.models.model_kinds import Advance, ImageFiles, ImageItem, Traits, beside
from logn.evaluate.models.onnx_model import LogitHints
from logn.evaluate.models.open_model import open_model
from logn.evaluate.models.score_change import ScoreChange, score_change
from logn.files import check_new
from logn.logits.arrays import foreground_columns
from logn.logits.images import select_images, spread_evenly
from logn.statistics.diagnosis import row_checks, sanity_checks
from logn.statistics.moments import ClassMoments

ImageSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Callable[[], npt.NDArray[np.uint8]]]
# How many images the proof runs on.
PROOF_IMAGES = 4


@dataclass(frozen=True)
class Correction:
    """What `correct` found and did.

    Attributes:
        model: The model, as the user names it.
        output: The corrected model; None where nothing was written.
        traits: Framework, preprocessing and kind of file.
        images: How many images it ran over.
        unreadable: Images that were left out.
        moments: The statistics, of each stage.
        recommendation: What `logn.recommend` says of them.
        method: The method of the correction; None where there was nothing to correct.
        maps: The maps, of each stage.
        change: What they do to the scores.
        proof: How far the corrected model is off the map of the old one; None where there was nothing to correct.
        files: All files and folders that were written.
        doubts: What looks wrong with the statistics.
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

    @property
    def layer(self) -> str:
        """The class layer; the modules of all stages."""
        return ", ".join(str(part.metadata.layer) for part in self.moments)

    @property
    def num_classes(self) -> int:
        """How many classes there are, without the background and columns that are none."""
        first = self.moments[0]
        return first.num_classes - len(set(first.metadata.unused))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        known = self.moments[0].metadata
        return {
            "model": self.model,
            "output": self.output,
            "framework": self.traits.framework,
            "preprocessing": self.traits.preprocessing,
            "layer": self.layer,
            "num_classes": self.num_classes,
            "class_names": known.class_names
            and list(known.class_names[foreground_columns(self.moments[0].num_columns, known.background)]),
            "activation": known.activation,
            "background": known.background,
            "population": known.population,
            "images": self.images,
            "unreadable": list(self.unreadable),
            "rows": int(self.moments[0].count.max()),
            "recommendation": self.recommendation.to_dict(),
            "method": self.method,
            "change": None if self.change is None else self.change.to_dict(),
            "proof": None if self.proof is None else asdict(self.proof),
            "files": list(self.files),
            "warnings": list(self.doubts),
        }


def correct(
    model: str | os.PathLike[str],
    images: ImageSource,
    output: str | os.PathLike[str] | None = None,
    *,
    method: str | None = None,
    affine: ClassAffine | None = None,
    threshold: float | None = None,
    max_images: int | None = None,
    batch: int | None = None,
    skip_unreadable: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
    trust: bool = False,
    device: str = "auto",
    activation: str | None = None,
    background: int | None = None,
    tensor: str | Sequence[str] | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    like: str | None = None,
    progress: Advance = lambda count: None,
    **preprocessing: Any,
) -> Correction:
    '''Correct a model by one pass over unlabelled training images, and write it anew.

    The model runs over the images, the statistics of its logits are judged by `logn.recommend`, and where there is
    something to correct, the correction is folded into the weights of its class layer. The corrected model is written
    in the same kind of file under a temporary name, read back, compared with the old one on some of the images, and
    only then gets its name. Statistics and map are written beside it (into it, where it is a folder).

    Args:
        model: An `.onnx` file; a folder in the form of transformers' `save_pretrained`; a `.pt` file of Ultralytics,
            with `trust`; or "package.module:function" or "file.py:function", a function of yours that
            returns a model of torch, whose corrected state dict is then written as `.safetensors`.
        images: A folder of training images, a list of files, or a list of functions without arguments that give one
            RGB image each. Labels are not needed.
        output: Where to write; it must not exist yet, unless `overwrite`.
        method: A method as for `logn.methods.fit`; what `logn.recommend` says by default.
        affine: A map to fold in the place of one that is fitted here, such as that of `logn.OperatingPoints`.
        threshold: The score above which you count a detection; by default 0.25 for sigmoids, 0.05 for a softmax.
        max_images: Take at most this many images, spread evenly.
        batch: Images per forward pass; by default 1 for ONNX files, else 8.
        skip_unreadable: Leave out images that cannot be read.
        dry_run: Do all of it but leave nothing on disk.
        overwrite: Replace the files of `output` where they exist; a folder is never replaced.
        trust: Open a `.pt` file, which is a pickle: opening it runs whatever code its author put there.
        device: "auto", "cpu" or "cuda", for models of torch.
        activation: "softmax" or "sigmoid", where the model does not say what it applies to the logits.
        background: ONNX: place of the background column, 0 or -1.
        tensor: ONNX: name of the tensor that holds the logits, where the search finds several.
        num_classes: ONNX: columns of the logits, where the search finds several.
        class_names: ONNX: name of each column, or a file of them, for the record.
        like: ONNX files and functions: the name of a preset of `logn.logits.images`, such as "yolox".
        progress: Called with the number of images whenever some are done.
        preprocessing: Fields of `Preprocessing` in which the model differs from that, such as `size=(640, 640)`.

    Returns:
        What was found and done. Where there is nothing to correct (and no `method` was asked for), its `method` is
        None and nothing was written.

    Example:
        >>> import onnx.parser, numpy as np
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 1, 1] x) => (float[N, 3] y)
        ... <float[3, 3] w = {2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0}> { f = Flatten(x) y = Gemm(f, w) }"""
        >>> onnx.save_model(onnx.parser.parse_model(text), str(folder / "model.onnx"))
        >>> for place, pixel in enumerate(np.random.default_rng(0).integers(0, 256, (20, 3), np.uint8)):
        ...     Image.fromarray(pixel.reshape(1, 1, 3)).save(folder / f"{place}.png")
        >>> done = correct(folder / "model.onnx", folder, folder / "new.onnx", method="logn", max_value=1.0)
        >>> done.num_classes, done.method, done.proof.holds, [file.name for file in done.files]
        (3, 'logn', True, ['new.affine.safetensors', 'new.statistics.safetensors', 'new.onnx'])
    '''
    name, target = os.fspath(model), None if output is None else Path(output)
    if threshold is not None:
        checked_share("threshold", threshold)
    if method is not None:
        if affine is not None:
            raise InputError("Expected `method` or a map (`affine`), but got both.")
        parse(method)
    if target is None and not dry_run:
        raise InputError("Expected `output`, where to write the corrected model, but got none.")
    names = (tensor,) if isinstance(tensor, str) else tensor
    hints = LogitHints(activation, background, names, num_classes, class_names)
    given = {key: value for key, value in preprocessing.items() if value is not None}
    items = choose_images(images, max_images)
    if target is not None:
        _check_target(name, target, overwrite=overwrite)
    source = open_model(name, hints, like, given, trust=trust, device=device)
    if target is not None:
        _check_suffix(name, target, source.traits.suffix)
    source.check()
    files = ImageFiles(items, skip_unreadable)
    with _quiet():
        moments = source.collect(files, batch=batch, progress=progress)
        recommendation = _judge(moments, threshold)
    found = Correction(
        model=name,
        output=None,
        traits=source.traits,
        images=len(items) - len(files.unreadable),
        unreadable=tuple(files.unreadable),
        moments=moments,
        recommendation=recommendation,
        doubts=(*sanity_checks(moments[0]), *row_checks(moments[0])),
    )
    maps: tuple[ClassAffine, ...]
    if affine is not None:
        chosen, maps = affine.method or "the given map", _one_map(affine, moments)
    elif method is None and recommendation.method == NONE:
        return found
    else:
        chosen = method or RECOMMENDED
        keeps: dict[str, Any] = {"threshold": recommendation.threshold} if chosen == RECOMMENDED else {}
        with _quiet():
            maps = tuple(fit(chosen, part, **keeps) for part in moments)
    place = target or Path(f"corrected{source.traits.suffix}")
    with _workshop(target if not dry_run else None) as folder:
        proof = source.write(maps, folder / place.name, files.few(PROOF_IMAGES))
        _keep_statistics(folder, place, moments, maps, in_folder=not source.traits.suffix)
        written = () if target is None or dry_run else _move(folder, target)
    return Correction(
        **{
            **vars(found),
            "output": None if dry_run else target,
            "method": chosen,
            "maps": maps,
            "change": score_change(moments[0], maps[0], recommendation.threshold, found.images),
            "proof": proof,
            "files": written,
        }
    )


def choose_images(source: ImageSource, count: int | None) -> list[ImageItem]:
    """At most `count` of the images, spread evenly; all for None.

    Example:
        >>> [path.name for path in choose_images(["a.png", "b.png", "c.png", "d.png"], 2)]
        ['a.png', 'c.png']
    """
    if isinstance(source, str | os.PathLike):
        return [*select_images(source, count)]
    items: list[ImageItem] = [item if callable(item) else Path(item) for item in source]
    return spread_evenly(items, count)


def _judge(moments: Sequence[ClassMoments], threshold: float | None) -> Recommendation:
    """The recommendation for the first stage that has something to correct, else for the first."""
    found = [recommend(part, threshold=threshold) for part in moments]
    return next((judged for judged in found if judged.method != NONE), found[0])


def _one_map(affine: ClassAffine, moments: Sequence[ClassMoments]) -> tuple[ClassAffine]:
    """A given map, where the model has one set of logits and as many columns."""
    if len(moments) > 1:
        raise InputError(f"Expected a model with one set of class logits for a given map, but it has {len(moments)}.")
    if affine.num_columns != moments[0].num_columns:
        raise InputError(
            f"Expected a map of {moments[0].num_columns} columns, as the model has them, but got one of "
            f"{affine.num_columns}."
        )
    return (affine,)


@contextmanager
def _quiet() -> Iterator[None]:
    """What there is to doubt is in the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)
        yield


def _check_target(name: str, target: Path, *, overwrite: bool) -> None:
    if Path(name).exists() and target.exists() and target.samefile(name):
        raise InputError(f"Expected `output` to be another file than the model, but both are `{target}`.")
    more = [beside(target, what, in_folder=False) for what in ("statistics", "affine")]
    if target.suffix.lower() == ".onnx":
        more.append(target.with_name(f"{target.name}.data"))  # weights in external data
    check_new(target, *more, overwrite=overwrite)
    parent = target.absolute().parent
    if not parent.is_dir():
        raise InputError(f"Expected the folder of `{target}` to exist, but `{target.parent}` does not.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"Expected the folder `{parent}` to be writable, but it is not.")


def _check_suffix(name: str, target: Path, suffix: str) -> None:
    if suffix and target.suffix.lower() != suffix:
        raise InputError(f"Expected `output` to end in {suffix}, as what is made of `{name}` does, but got `{target}`.")
    if not suffix and target.suffix.lower() in (".onnx", ".pt", ".pth", ".safetensors"):
        raise InputError(f"Expected `output` to be a folder, as `{name}` is one, but got `{target}`.")


@contextmanager
def _workshop(target: Path | None) -> Iterator[Path]:
    """A folder for what is being made: beside the target, so that it can be renamed; gone afterwards."""
    if target is None:
        with tempfile.TemporaryDirectory(prefix="logn-correct-") as folder:
            yield Path(folder)
        return
    folder_path = target.with_name(f".{target.name}.{os.getpid()}.partial")
    folder_path.mkdir()
    try:
        yield folder_path
    finally:
        shutil.rmtree(folder_path, ignore_errors=True)


def _keep_statistics(
    folder: Path, place: Path, moments: Sequence[ClassMoments], maps: Sequence[ClassAffine], *, in_folder: bool
) -> None:
    for stage, (part, affine) in enumerate(zip(moments, maps, strict=True)):
        number = stage if len(maps) > 1 else None
        part.save(beside(folder / place.name, "statistics", number, in_folder=in_folder))
        affine.save(beside(folder / place.name, "affine", number, in_folder=in_folder))


def _move(folder: Path, target: Path) -> tuple[Path, ...]:
    """Give everything its name, the model last: what bears its name is whole."""
    parts = sorted(folder.iterdir(), key=lambda part: (part.name == target.name, part.name))
    for part in parts:
        os.replace(part, target.with_name(part.name))
    return tuple(target.with_name(part.name) for part in parts)
