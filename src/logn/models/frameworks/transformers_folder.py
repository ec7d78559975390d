"""Folders in the form of transformers' `save_pretrained`: a detector with its image processor, read and written.

Only safetensors are read, and nothing is looked for on a network.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from logn.base.files import atomic_path
from logn.base.strict_json import parse_json
from logn.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch import nn

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
# What transformers raises over the files of a folder.
_UNREADABLE = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, ImportError, SafetensorError)
# Weights that are pickles, which run code when they are opened.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def is_transformers_folder(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a folder whose configuration names a model of transformers.

    Example:
        >>> is_transformers_folder("no such folder")
        False
    """
    try:
        config = parse_json((Path(path) / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and isinstance(config.get("model_type"), str)


def read_transformers(folder: str | os.PathLike[str]) -> tuple[nn.Module, Any]:
    """The model of a folder, of the class that its configuration names, in evaluation mode, and its image processor.

    Every weight must be in the folder: one that is missing would be drawn at random.
    """
    folder = Path(folder)
    transformers = _transformers()
    _check_files(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if getattr(config, "use_pretrained_backbone", None):
            config.use_pretrained_backbone = False  # its weights are in the folder too
        model, found = _architecture(transformers, config, folder).from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except _UNREADABLE as error:
        raise _unreadable(folder, "a model", error) from error
    for kind, verb in (("missing_keys", "lacks"), ("mismatched_keys", "has another shape of")):
        names = sorted(str(name) for name in found.get(kind) or ())
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InputError(
                f"`{folder}` {verb} `{names[0]}`{more}, weights of {type(model).__name__}; save the model again."
            )
    return model.eval(), read_processor(folder)


def read_processor(folder: str | os.PathLike[str]) -> Any:
    """The image processor of a folder."""
    transformers = _transformers()
    try:
        return transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _UNREADABLE as error:
        raise _unreadable(Path(folder), "an image processor", error) from error


def write_transformers(
    model: nn.Module, processor: Any, out: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None
) -> Path:
    """Save a model, such as one that a map was folded into, with its image processor, in one step.

    The folder gets a temporary name until all of it is there; a folder that is there already is refused.

    Args:
        model: A model of transformers.
        processor: Its image processor.
        out: The folder to make.
        source: The folder that the model was read from: its licence and notices go along.

    Returns:
        The folder.
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"`{target}` exists already; choose a new folder.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"There is no folder `{target.parent}` for `{target}`; make it first.")
    with atomic_path(target) as temporary:
        model.save_pretrained(temporary)  # type: ignore[operator]
        processor.save_pretrained(temporary)
        for file in _notices(source):
            shutil.copy(file, temporary / file.name)
    return target


def class_names_of(config: Any) -> tuple[str, ...] | None:
    """The names of the classes in the order of their columns; None where the configuration only numbers them.

    Example:
        >>> from types import SimpleNamespace
        >>> class_names_of(SimpleNamespace(id2label={1: "dog", 0: "cat"}))
        ('cat', 'dog')
        >>> class_names_of(SimpleNamespace(id2label={0: "LABEL_0", 1: "LABEL_1"})) is None
        True
    """
    labels = {int(column): str(name) for column, name in (getattr(config, "id2label", None) or {}).items()}
    if sorted(labels) != list(range(len(labels))) or all(name == f"LABEL_{i}" for i, name in labels.items()):
        return None
    return tuple(labels[column] for column in sorted(labels))


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the package is imported
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", extra="frameworks") from error
    return transformers


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"There is no folder `{folder}`; pass one that save_pretrained has written.")
    for name, what in ((CONFIG, "a model"), (PROCESSOR, "an image processor")):
        if not (folder / name).is_file() and not (name == PROCESSOR and (folder / "processor_config.json").is_file()):
            raise InputError(
                f"`{folder}` has no `{name}`, the configuration of {what}; save it there: "
                f"{'processor' if name == PROCESSOR else 'model'}.save_pretrained(folder)."
            )
    if not any(folder.glob("*.safetensors")):
        pickles = _names(folder, _PICKLES)
        pickle = f", only a pickle (`{pickles[0]}`), which runs code when it is opened" if pickles else ""
        raise InputError(
            f"`{folder}` has no weights as safetensors{pickle}; load it with transformers and save it again by "
            "model.save_pretrained."
        )


def _names(folder: Path, patterns: Sequence[str]) -> list[str]:
    return sorted(file.name for pattern in patterns for file in folder.glob(pattern))


def _architecture(transformers: Any, config: Any, folder: Path) -> Any:
    """The class that was saved: the one that an Auto class would take may have other layers, drawn at random."""
    names = getattr(config, "architectures", None) or [None]
    kind = getattr(transformers, str(names[0]), None)
    if kind is None:
        raise InputError(
            f"`{folder / CONFIG}` names {names[0]!r} under `architectures`, which is no model of transformers."
        )
    return kind


def _unreadable(folder: Path, what: str, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return InputError(f"`{folder}` cannot be read as {what} of transformers: {reason}.")


def _notices(source: str | os.PathLike[str] | None) -> list[Path]:
    if source is None:
        return []
    return [file for file in sorted(Path(source).iterdir()) if file.name.upper().startswith(("LICENSE", "NOTICE"))]
