"""Labels of Pascal VOC: an XML file for each image, in `Annotations/` of a folder or beside the images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from logn.data.images import SUFFIXES
from logn.data.json_stream import Element
from logn.data.label_sources import DEFAULT_SPLIT, LabelSource, image_sets, image_sizes, numbered
from logn.errors import InputError, warn

_SIDES = ("xmin", "ymin", "xmax", "ymax")


class _Thing(NamedTuple):
    name: str
    left: float
    top: float
    right: float
    bottom: float
    difficult: bool

    def box(self, offset: int) -> list[float]:
        """As COCO has it, with corners counted from `offset`."""
        left, top = self.left - offset, self.top - offset
        return [left, top, self.right - left, self.bottom - top]


class _Picture(NamedTuple):
    """One XML file."""

    file: Path
    image: str  # the name that it tells
    size: tuple[int, int] | None
    things: tuple[_Thing, ...]


def voc_elements(source: LabelSource) -> Iterator[Element]:
    """The classes, images and objects of a split, as the elements of a COCO file.

    Classes are all names in the folder, in alphabetical order, whatever the split has of them. Difficult objects are
    marked as crowds: they need not be found, and finding them is no fault. Ids of images are the numbers that their
    files are named by, where all are, else their places.

    VOC counts pixels from 1 and a box includes the last one: `xmin, xmax` cover `xmin - 1` to `xmax`. A folder with a
    corner at 0 was written by a tool that counts from 0: its corners are taken as they are, and a warning says so.
    """
    everything = {file.stem: _read(file) for file in sorted(_xml_files(source.path))}
    if not everything:
        raise InputError(f"`{source.path}` holds no XML files of Pascal VOC.")
    offset = _offset(source.path, everything.values())
    names = sorted({thing.name for picture in everything.values() for thing in picture.things})
    for number, name in enumerate(names, start=1):
        yield Element("categories", {"id": number, "name": name}, -1, -1)
    pictures = [everything[stem] for stem in _stems(source, everything)]
    paths = [_image_file(source.path, picture) for picture in pictures]
    _warn_of_stale_names(pictures, paths)
    count, ids = 0, numbered([picture.file.stem for picture in pictures])
    category = {name: number for number, name in enumerate(names, start=1)}
    for picture, path, image_id in zip(pictures, paths, ids, strict=True):
        width, height = picture.size or next(image_sizes([str(path)]))
        entry = {"id": image_id, "file_name": path.relative_to(source.path).as_posix(), "width": width}
        yield Element("images", entry | {"height": height}, -1, -1)
        for thing in picture.things:
            count += 1
            box = thing.box(offset)
            labels = {"id": count, "image_id": image_id, "category_id": category[thing.name], "bbox": box}
            yield Element("annotations", labels | {"area": box[2] * box[3], "iscrowd": int(thing.difficult)}, -1, -1)


def _xml_files(folder: Path) -> Iterator[Path]:
    inside = folder / "Annotations"
    return (inside if inside.is_dir() else folder).glob("*.xml")


def _offset(folder: Path, pictures: Any) -> int:
    for picture in pictures:
        if any(min(thing.left, thing.top) < 1 for thing in picture.things):
            warn(
                f"`{folder}` has a corner at 0 (`{picture.file.name}`), though Pascal VOC counts pixels from 1: all "
                "boxes of the folder are taken as counted from 0."
            )
            return 0
    return 1


def _stems(source: LabelSource, everything: dict[str, _Picture]) -> list[str]:
    """The names of the images of a split; of all where the folder has no lists and none was asked for."""
    lists = image_sets(source.path)
    if source.split is None and not lists.is_dir():
        return list(everything)
    split = source.split or DEFAULT_SPLIT
    file = lists / f"{split}.txt"
    if not file.is_file():
        whole = [name.stem for name in sorted(lists.glob("*.txt")) if "_" not in name.stem]  # not those of one class
        known = ", ".join(f"`{source.path}:{name}`" for name in whole) or "no lists"
        raise InputError(f"`{source.path}` has no split `{split}`, since `{file}` does not exist; it has {known}.")
    rows = [line.split() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if any(len(row) > 1 for row in rows):
        raise InputError(f"`{file}` is the list of one class: pass a split, whose list has one image per line.")
    stems = [row[0] for row in rows]
    lacking = next((stem for stem in stems if stem not in everything), None)
    if lacking is not None:
        raise InputError(f"`{file}` lists `{lacking}`, which has no XML file.")
    if len(set(stems)) < len(stems):
        raise InputError(f"`{file}` lists some images twice.")
    return stems


def _image_file(folder: Path, picture: _Picture) -> Path:
    inside = folder / "JPEGImages"
    base = inside if inside.is_dir() else folder
    own = [f"{picture.file.stem}{suffix}" for suffix in SUFFIXES]
    # A file that was renamed with its image may still tell the old name, which may be that of another image.
    names = [picture.image, *own] if Path(picture.image).stem == picture.file.stem else [*own, picture.image]
    for name in filter(None, names):
        if (base / name).is_file():
            return base / name
    raise InputError(f"The image of `{picture.file}` is not at `{base / (picture.image or own[0])}`.")


def _warn_of_stale_names(pictures: Sequence[_Picture], paths: Sequence[Path]) -> None:
    """Warn of XML files that tell the name of another image than the one that is named as they are."""
    stale = [
        (picture, path)
        for picture, path in zip(pictures, paths, strict=True)
        if picture.image not in ("", path.name) and (path.parent / picture.image).is_file()
    ]
    if stale:
        picture, path = stale[0]
        warn(
            f"{len(stale)} XML files tell another image in `<filename>` than their own names: `{picture.file.name}` is "
            f"taken as the labels of `{path.name}`, not of `{picture.image}`. Correct `<filename>` or rename the files."
        )


def _read(file: Path) -> _Picture:
    try:
        root = _parse(file.read_bytes())
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise InputError(f"`{file}` is not XML of Pascal VOC: {error}.") from error
    if root.tag != "annotation":
        raise InputError(f"`{file}` is not XML of Pascal VOC: it holds `<{root.tag}>`, not `<annotation>`.")
    things = tuple(_thing(file, place, entry) for place, entry in enumerate(root.findall("object"), start=1))
    return _Picture(file, Path(_text(root, "filename")).name, _size(root), things)


def _parse(data: bytes) -> ElementTree.Element:
    """The root of an XML document; one that defines entities is refused before any is expanded."""
    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.EntityDeclHandler = builder.data, _refuse_entity
    parser.Parse(data, True)
    return builder.close()


def _refuse_entity(name: str, *declaration: object) -> None:
    raise ValueError(f"it defines the entity `{name}`; write the text itself")


def _text(entry: ElementTree.Element, path: str) -> str:
    return (entry.findtext(path) or "").strip()


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height; None where they are not told, as 0 often says: the image has them."""
    told = [_text(root, f"size/{name}") for name in ("width", "height")]
    if not all(text.isdecimal() and int(text) > 0 for text in told):
        return None
    return int(told[0]), int(told[1])


def _thing(file: Path, place: int, entry: ElementTree.Element) -> _Thing:
    name = _text(entry, "name")
    if not name:
        raise InputError(f"Object {place} of `{file}` has no `name`.")
    told = [_text(entry, f"bndbox/{side}") for side in _SIDES]
    try:
        left, top, right, bottom = map(float, told)
        valid = 0 <= left <= right < inf and 0 <= top <= bottom < inf
    except ValueError:
        valid = False
    if not valid:
        raise InputError(
            f"`bndbox` of object {place} of `{file}` must have numbers with 0 <= xmin <= xmax and 0 <= ymin <= ymax, "
            f"but {', '.join(_SIDES)} are {', '.join(text or 'none' for text in told)}."
        )
    return _Thing(name, left, top, right, bottom, _text(entry, "difficult") == "1")
