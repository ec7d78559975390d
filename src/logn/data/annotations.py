"""Annotations in any form, read in one way by all who need them: entry by entry, checked, kept as columns.

LVIS and COCO files, the `data.yaml` of YOLO and folders of Pascal VOC all come as the entries of a COCO file. Memory
stays at some fifty bytes an object, unless whole entries are asked for; the outlines, which are nearly all of a file,
are not even parsed then.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.json_stream import Element, stream_elements
from logn.data.label_sources import LabelSource, find_labels
from logn.data.voc import voc_elements
from logn.data.yolo import yolo_elements
from logn.errors import InputError

IntArray = npt.NDArray[np.int64]
Entry = dict[str, Any]
OUTLINE = "segmentation"
#: What every entry of a section must have, whoever reads it: numbers by which entries name each other.
INTEGERS = {"images": ("id",), "categories": ("id",), "annotations": ("image_id", "category_id")}
_LEAST, _MOST = -(2**63), 2**63 - 1
_NUMBERS = (int, float)
_CROWD = (None, 0, 1)
_NOUNS = {"images": "image", "categories": "category"}


@dataclass(frozen=True, eq=False)
class Annotations:
    """The content of an annotation file, everything in its order.

    Args:
        source: Where it came from, for messages.
        images: What was kept of each image; by default its entry.
        categories: The entries of the classes.
        entries: Those of the objects, if they were asked for.
        ids: `(N,)` id of each object; -1 where it has none.
        image_ids: `(N,)` its image.
        category_ids: `(N,)` its class.
        boxes: `(N, 4)` as `x, y, width, height`; empty unless boxes were asked for.
        crowd: `(N,)` whether it stands for a group of objects.
        places: `(N, 2)` first and last byte in the file; -1 without a file.
        rest: The other sections, if entries were asked for.
    """

    source: str
    images: list[Any]
    categories: list[Entry]
    entries: list[Entry]
    ids: IntArray
    image_ids: IntArray
    category_ids: IntArray
    boxes: npt.NDArray[np.float64]
    crowd: npt.NDArray[np.bool_]
    places: IntArray
    rest: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def require(self, *sections: str) -> None:
        """Refuse annotations that list no `images` or no `categories`."""
        for section in sections:
            if not getattr(self, section):
                raise InputError(f"`{self.source}` lists no `{section}`: pass annotations in COCO's or LVIS's format.")

    def positions(self, noun: str, listed: Iterable[int], *, of: npt.NDArray[np.bool_] | None = None) -> IntArray:
        """Where the `image` or the `category` of each object stands in a list of ids; one that is not there is refused.

        Args:
            noun: Which of the two.
            listed: The ids.
            of: Mask `(N,)` of the objects to look at; all by default.
        """
        used, objects = (self.image_ids if noun == "image" else self.category_ids), np.arange(len(self))
        if of is not None:
            used, objects = used[of], objects[of]
        ids = np.fromiter(listed, np.int64)
        order = np.argsort(ids, kind="stable")
        nearest: IntArray = order[np.searchsorted(ids[order], used).clip(max=len(ids) - 1)]
        unknown = np.flatnonzero(ids[nearest] != used)
        if len(unknown):
            first = int(unknown[0])
            raise InputError(
                f"`{self.source}` does not list {noun} {used[first]} of {self._name_of(int(objects[first]))} "
                f"({len(unknown)} such annotations)."
            )
        return nearest

    def _name_of(self, place: int) -> str:
        return f"annotation {self.ids[place]}" if self.ids[place] >= 0 else f"entry {place}"


def read_annotations(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    integers: Mapping[str, Sequence[str]] | None = None,
    boxes: bool = True,
    entries: bool = False,
    outlines: bool = False,
    image: Callable[[Entry], Any] = lambda entry: entry,
    name: str = "annotations",
) -> Annotations:
    """Read annotations and refuse the first entry that is not as it must be.

    Args:
        source: An LVIS v1 or COCO file, or what `json` made of it; the `data.yaml` of YOLO labels, or its folder; a
            folder of Pascal VOC. The split of the last two stands behind a colon, as in `data.yaml:train`; "val" else.
        integers: Numbers that entries must have besides `INTEGERS`, by section, such as `{"images": ["height"]}`.
        boxes: Whether objects must have a `bbox`.
        entries: Keep the entries of objects and all other sections.
        outlines: Keep the outlines in the entries.
        image: What to keep of the entry of an image.
        name: What to call content in messages; a file is called by its path.

    Example:
        >>> cup = {"id": 1, "image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4]}
        >>> content = {"images": [{"id": 7}], "categories": [{"id": 5}], "annotations": [cup]}
        >>> read_annotations(content).boxes.tolist()
        [[1.0, 2.0, 3.0, 4.0]]
        >>> read_annotations({**content, "images": [{"id": "7"}]})
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `id` of entry 0 of `images` in `annotations` must be an integer, but is the text '7': \
write it without quotes.
    """
    wanted = {section: (*names, *(integers or {}).get(section, ())) for section, names in INTEGERS.items()}
    if isinstance(source, Mapping):
        draft = _Draft(name, wanted, image, boxes=boxes, entries=entries)
        draft.rest = {section: value for section, value in source.items() if section not in wanted}
        elements = _elements(source, name)
    else:
        draft = _Draft(os.fspath(source), wanted, image, boxes=boxes, entries=entries)
        elements = _stream(find_labels(source), outlines=outlines, sizes=boxes or entries)
        draft.drops_outlines = not outlines
    for element in elements:
        if element.section == "annotations":
            draft.add_annotation(element)
        elif element.section in wanted:
            draft.add_listed(element)
        elif entries:
            draft.rest.setdefault(element.section, []).append(element.value)
    return draft.finish()


def _stream(source: LabelSource, *, outlines: bool, sizes: bool) -> Iterator[Element]:
    if source.form == "yolo":
        return yolo_elements(source, sizes=sizes)
    if source.form == "voc":
        return voc_elements(source)
    if source.is_of_classifier:
        what = "a folder without COCO, YOLO or VOC labels" if source.form == "folders" else "a list"
        raise InputError(f"`{source.path}` is {what}, but boxes are needed: pass LVIS, COCO, YOLO or VOC labels.")
    return stream_elements(source.path, skip=None if outlines else OUTLINE)


#: What says of each image of LVIS which classes were looked for.
FEDERATED_FIELDS = ("neg_category_ids", "not_exhaustive_category_ids")


def label_protocol(annotations: Annotations) -> str:
    """How labels are to be measured: "lvis" where they say which classes were looked for in each image, else "coco".

    COCO, YOLO and VOC label every class in every image; LVIS labels are federated. Those of which only some images have
    the fields of LVIS are "lvis" as well, which then refuses the images that lack them.

    Args:
        annotations: What `read_annotations` gave, with the entries of the images.

    Example:
        >>> label_protocol(read_annotations({"images": [{"id": 1, "neg_category_ids": []}]}))
        'lvis'
    """
    federated = any(field in image for image in annotations.images for field in FEDERATED_FIELDS)
    return "lvis" if federated else "coco"


def image_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths where an image may be, best first: LVIS gives the folder only in `coco_url`."""
    names = []
    if isinstance(entry.get("coco_url"), str):
        parts = entry["coco_url"].split("/")
        names += ["/".join(parts[-2:]), parts[-1]]
    if isinstance(entry.get("file_name"), str):
        names.insert(0, entry["file_name"])
    return tuple(dict.fromkeys(name for name in names if name))


def fingerprint_images(images: Iterable[tuple[int, tuple[str, ...]]]) -> str:
    """Digest of the ids and names of images, which tells apart two data sets with the same ids.

    Example:
        >>> fingerprint_images([(1, ("a.jpg",))]) == fingerprint_images([(1, ("b.jpg",))])
        False
    """
    listed = sorted((number, *names) for number, names in images)
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:32]


def _elements(content: Mapping[str, Any], name: str) -> Iterator[Element]:
    for section in INTEGERS:
        listed = content.get(section, ())
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise InputError(f"`{section}` of `{name}` must be a list, but is {listed!r:.40}.")
        for value in listed:
            yield Element(section, value, -1, -1)


class _Draft:
    """Columns that grow."""

    def __init__(
        self,
        source: str,
        integers: Mapping[str, Sequence[str]],
        image: Callable[[Entry], Any],
        *,
        boxes: bool,
        entries: bool,
    ) -> None:
        self.source, self.integers, self.image = source, integers, image
        self.needs_boxes, self.keeps_entries, self.drops_outlines = boxes, entries, False
        self.listed: dict[str, dict[int, Any]] = {"images": {}, "categories": {}}
        self.entries: list[Entry] = []
        self.rest: dict[str, Any] = {}
        self.ids, self.image_ids, self.category_ids = array("q"), array("q"), array("q")
        self.boxes, self.crowds, self.places = array("d"), array("b"), array("q")

    def add_listed(self, element: Element) -> None:
        """Take in an image or a class."""
        known = self.listed[element.section]
        entry = self._entry(element, len(known))
        if entry["id"] in known:
            raise InputError(f"`{self.source}` lists {_NOUNS[element.section]} {entry['id']} twice.")
        known[entry["id"]] = self.image(entry) if element.section == "images" else entry

    def add_annotation(self, element: Element) -> None:
        """Take in an object."""
        place = len(self.ids)
        entry = self._entry(element, place)
        number: Any = entry.get("id")
        self.ids.append(number if _is_integer(number) else -1)  # only for messages
        self.image_ids.append(entry["image_id"])
        self.category_ids.append(entry["category_id"])
        crowd = entry.get("iscrowd")
        if crowd not in _CROWD:
            raise InputError(
                f"`iscrowd` of {self._where(entry, place)} `{self.source}` must be 0 or 1, but is {crowd!r:.40}."
            )
        self.crowds.append(bool(crowd))
        self.places.extend((element.start, element.stop))
        if self.needs_boxes:
            box: Any = entry.get("bbox")
            if not _is_box(box):
                self._refuse_box(entry, place)
            self.boxes.extend(box)
        if self.keeps_entries:
            if self.drops_outlines:
                entry.pop(OUTLINE, None)
            self.entries.append(entry)

    def _entry(self, element: Element, place: int) -> Entry:
        entry, section = element.value, element.section
        if not isinstance(entry, dict):
            raise InputError(
                f"Entry {place} of `{section}` in `{self.source}` must be an object, but is {entry!r:.40}."
            )
        for name in self.integers[section]:
            value = entry.get(name)
            if type(value) is not int or not _LEAST <= value <= _MOST:
                self._check_integer(entry, section, name, place)
        return entry

    def _check_integer(self, entry: Entry, section: str, name: str, place: int) -> None:
        if name not in entry:
            raise InputError(_lacks(section, self.source, name, place))
        if not _is_integer(entry[name]):
            value, hint = f"{entry[name]!r:.40}", ""
            if isinstance(entry[name], str):
                value = f"the text {value}"
                hint = ": write it without quotes" if entry[name].isdecimal() else ": use whole numbers as ids"
            raise InputError(
                f"`{name}` of entry {place} of `{section}` in `{self.source}` must be an integer, but is {value}{hint}."
            )

    def _refuse_box(self, entry: Entry, place: int) -> None:
        if "bbox" not in entry:
            raise InputError(_lacks("annotations", self.source, "bbox", place))
        expected = "x, y, width and height, both at least 0" if _is_numbers(entry["bbox"]) else "four finite numbers"
        raise InputError(
            f"`bbox` of {self._where(entry, place)} `{self.source}` must be {expected}, but is {entry['bbox']!r:.80}."
        )

    @staticmethod
    def _where(entry: Entry, place: int) -> str:
        return f"annotation {entry['id']} of" if "id" in entry else f"entry {place} of `annotations` in"

    def finish(self) -> Annotations:
        """The columns as arrays; objects of images that are not listed are refused, where any are."""
        annotations = Annotations(
            source=self.source,
            images=list(self.listed["images"].values()),
            categories=list(self.listed["categories"].values()),
            entries=self.entries,
            ids=np.frombuffer(self.ids, np.int64),
            image_ids=np.frombuffer(self.image_ids, np.int64),
            category_ids=np.frombuffer(self.category_ids, np.int64),
            boxes=np.frombuffer(self.boxes, np.float64).reshape(-1, 4),
            crowd=np.frombuffer(self.crowds, np.bool_),
            places=np.frombuffer(self.places, np.int64).reshape(-1, 2),
            rest=self.rest,
        )
        if self.listed["images"]:
            annotations.positions("image", self.listed["images"])
        return annotations


def _lacks(section: str, source: str, name: str, place: int) -> str:
    return f"Entry {place} of `{section}` in `{source}` has no `{name}`."


def _is_integer(value: object) -> bool:
    """Whether a value is a whole number that an id can be; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and _LEAST <= int(value) <= _MOST


def _is_box(box: Any) -> bool:
    return _is_numbers(box) and box[2] >= 0 and box[3] >= 0


def _is_numbers(box: Any) -> bool:
    if not isinstance(box, list | tuple | np.ndarray) or len(box) != 4:
        return False
    try:
        return all((type(value) in _NUMBERS or isinstance(value, np.number)) and isfinite(value) for value in box)
    except (OverflowError, TypeError):  # a whole number beyond all floats, a complex one
        return False
