"""Annotations in the classes of a model: what else is known of classes then needs no other numbering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.matching import ClassMatch, listed
from logn.errors import InputError
from logn.labels.annotations import FEDERATED_FIELDS, Annotations


def in_classes_of_model(
    found: Annotations, match: ClassMatch, model_ids: Sequence[int] | None, *, allow_missing: bool
) -> Annotations:
    """Annotations whose categories are all classes of the model, in its order; those it lacks are left out.

    Statistics, maps and scores stay as they are, over all of the model's classes: only the labels are renumbered.

    Args:
        found: Annotations with entries.
        match: Which of their classes, sorted by id, is which class of the model.
        model_ids: Category ids that the predictions were stored with; the classes are numbered from 1 on without them,
            and where these do not ascend.
        allow_missing: Leave out objects of classes that the model lacks; they are refused otherwise.
    """
    ids = _ids(match, model_ids)
    categories = sorted(found.categories, key=lambda category: category["id"])
    labels = found.positions("category", (category["id"] for category in categories))
    known = match.model_of_label >= 0
    kept = known[labels]
    if not allow_missing and not kept.all():
        _refuse(found.source, match, labels[~kept])
    new_id = {
        category["id"]: ids[place]
        for category, place in zip(categories, match.model_of_label.tolist(), strict=True)
        if place >= 0
    }
    entries = [{**entry, "category_id": new_id[entry["category_id"]]} for entry in compress(found.entries, kept)]
    return replace(
        found,
        images=[_image(image, new_id) for image in found.images],
        categories=[_category(match, place, ids[place], categories) for place in range(len(ids))],
        entries=entries,
        ids=found.ids[kept],
        image_ids=found.image_ids[kept],
        category_ids=np.array([entry["category_id"] for entry in entries], np.int64),
        boxes=found.boxes[kept],
        crowd=found.crowd[kept],
        places=found.places[kept],
    )


def _ids(match: ClassMatch, model_ids: Sequence[int] | None) -> list[int]:
    # The evaluator sorts classes by their ids.
    if model_ids is not None and (np.diff(model_ids) > 0).all():
        return [int(number) for number in model_ids]
    return list(range(1, len(match.model_names) + 1))


def _refuse(source: str, match: ClassMatch, labels: npt.NDArray[np.int64]) -> None:
    names = [match.label_names[place] for place in np.unique(labels)]
    raise InputError(
        f"Expected the classes of `{source}` to be classes of the model, but the model has no "
        f"{listed(names)}, of which there are {len(labels)} objects; to leave them out, allow missing classes "
        "(allow_missing_classes=True)."
    )


def _image(image: Mapping[str, Any], new_id: Mapping[int, int]) -> dict[str, Any]:
    lists = {
        field: [new_id[number] for number in image[field] if number in new_id]
        for field in FEDERATED_FIELDS
        if isinstance(image.get(field), list)
    }
    return {**image, **lists}


def _category(match: ClassMatch, place: int, number: int, categories: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    label = int(match.label_of_model[place])
    known = categories[label] if label >= 0 else {}
    return {**known, "id": number, "name": match.model_names[place]}
