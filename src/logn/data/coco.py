"""Labels in COCO's and LVIS's format: the types of their entries, and the reader of such files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from logn.base.files import mapped_bytes, require_file
from logn.base.strict_json import Buffer, parse_typed, plain_values
from logn.errors import InputError

Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Category(msgspec.Struct, frozen=True, gc=False):
    """A class; LVIS adds its group (r, c or f) and its training counts."""

    id: Id
    name: str | int | None = None
    frequency: str | None = None
    image_count: float | None = None
    instance_count: float | None = None

    @property
    def title(self) -> str:
        """What to call the class: its name, or its id where it has none."""
        return str(self.id if self.name is None else self.name)


class LabelledImage(msgspec.Struct, frozen=True, gc=False):
    """An image; LVIS adds the classes that are in it nowhere, and those of which not every object is labelled."""

    id: Id
    file_name: str | None = None
    coco_url: str | None = None
    height: int | None = None
    width: int | None = None
    neg_category_ids: list[int] | None = None
    not_exhaustive_category_ids: list[int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Paths where the image may be, best first: LVIS gives the folder only in `coco_url`.

        Example:
            >>> LabelledImage(7, coco_url="http://images.cocodataset.org/val2017/7.jpg").names
            ('val2017/7.jpg', '7.jpg')
        """
        parts = (self.coco_url or "").split("/")
        names = (self.file_name, "/".join(parts[-2:]), parts[-1])
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def is_federated(self) -> bool:
        """Whether the image names classes that were looked for, as LVIS does."""
        return self.neg_category_ids is not None or self.not_exhaustive_category_ids is not None


class LabelledObject(msgspec.Struct, frozen=True, gc=False):
    """An object; its box is `x, y, width, height`."""

    image_id: Id
    category_id: Id
    bbox: tuple[float, float, float, float] | None = None
    area: float | None = math.nan
    iscrowd: Literal[0, 1] | bool | None = None


class OutlinedObject(LabelledObject, frozen=True, gc=False):
    """An object with its outline, which stays text until it is used; empty for none."""

    segmentation: msgspec.Raw = msgspec.Raw()


class LabelReader(Protocol):
    """What a format of labels gives; one file per format."""

    def categories(self) -> Sequence[Category]:
        """The classes, in any order."""
        ...

    def images(self) -> Sequence[LabelledImage]:
        """The images, in their order."""
        ...

    def objects(self) -> Sequence[LabelledObject]:
        """The objects, in their order."""
        ...


class _File(msgspec.Struct, gc=False):
    images: list[LabelledImage] | None = None
    categories: list[Category] | None = None
    annotations: list[LabelledObject] | None = None


class _OutlinedFile(msgspec.Struct, gc=False):
    images: list[LabelledImage] | None = None
    categories: list[Category] | None = None
    annotations: list[OutlinedObject] | None = None


class CocoReader:
    """Read a COCO or LVIS file, or what `json` made of one.

    Args:
        source: The file or its content.
        outlines: Keep the outlines of objects.
        name: What to call the labels in messages.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any], *, outlines: bool, name: str) -> None:
        kind: type[_File] | type[_OutlinedFile] = _OutlinedFile if outlines else _File
        self._file = parse_typed(_bytes_of(source, name, keep=outlines), kind, name)

    def categories(self) -> Sequence[Category]:
        """The classes."""
        return self._file.categories or ()

    def images(self) -> Sequence[LabelledImage]:
        """The images."""
        return self._file.images or ()

    def objects(self) -> Sequence[LabelledObject]:
        """The objects."""
        return self._file.annotations or ()


def _bytes_of(source: str | os.PathLike[str] | Mapping[str, Any], name: str, *, keep: bool) -> Buffer:
    """The JSON text; outlines refer to it, and a mapped file may change under them."""
    if isinstance(source, Mapping):
        try:
            return msgspec.json.encode(plain_values(source))
        except (TypeError, ValueError) as error:
            raise InputError(f"`{name}` is not what JSON can hold: {error}.") from error
    if keep:
        require_file(source)
        return Path(source).read_bytes()
    return mapped_bytes(source)
