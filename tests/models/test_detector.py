"""Detectors of users: what an object must have, what it may say of itself, and what is made of it at the doors."""

import numpy as np
import pytest
from tests.made.toys import ROWS, ToyDetector, toy_classifier

import logn
from logn.errors import InputError
from logn.models.hints import Hints
from logn.models.layer import fingerprint
from logn.models.open import open_correctable, open_model
from logn.models.proposals import Postprocessing

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
NAMES = ("ant", "bee")


class Images:
    """Two images, for `logn.predict`."""

    image_ids, category_ids, class_names, images_fingerprint = np.array([3, 5]), np.array([1, 2]), NAMES, None

    def read_image(self, index):
        return IMAGE


def head_of(detector):
    return detector.head_of(detector.propose([detector.prepare(IMAGE)])[0])


def test_three_attributes_are_enough(tmp_path):
    detector = logn.detector(ToyDetector())
    assert isinstance(detector, logn.Detector)
    assert logn.detector(detector) is detector
    assert (detector.class_names, detector.num_classes, detector.masks is None) == (None, None, False)
    head = head_of(detector)
    assert (head.num_columns, head.background, head.activation, head.names) == (3, -1, "softmax", None)
    assert (head.source, detector.network, detector.name) == (None, None, "ToyDetector")
    with pytest.raises(InputError, match="`class_names`"):  # neither names nor a number to match them by position
        logn.predict(ToyDetector(), Images(), tmp_path / "store")
    assert logn.predict(ToyDetector(class_names=NAMES), Images(), tmp_path / "store") == 2


def test_what_it_says_of_itself_is_in_its_head():
    postprocessing = Postprocessing(nms="none")
    said = {"population": "queries", "fingerprint": "made", "logit_layer": logn.LogitLayer("fc")}
    detector = logn.detector(
        ToyDetector(class_names=("bee",), class_columns=(1,), postprocessing=postprocessing, **said)
    )
    head = head_of(detector)
    assert (head.names, head.unused, head.class_names) == (("N/A", "bee", "background"), (0,), ("bee",))
    assert (head.population, head.source, head.layer) == ("queries", "made", "fc")
    assert (detector.num_classes, detector.postprocessing) == (1, postprocessing)


def test_its_module_gives_the_fingerprint_as_it_is_now():
    module = toy_classifier()
    detector = logn.detector(ToyDetector(model=module))
    before = detector.source
    assert before == fingerprint(module)
    module[2].bias.data += 1
    assert detector.source == fingerprint(module) != before


@pytest.mark.parametrize("lacking", ["background", "activation"])
def test_what_lacks_an_attribute_is_refused(lacking):
    complete = {"propose": lambda self, images: [], "background": None, "activation": "sigmoid"}
    made = type("Mine", (), {name: value for name, value in complete.items() if name != lacking})()
    with pytest.raises(InputError, match=f"`{lacking}`"):
        logn.detector(made)


def test_names_come_from_it_or_from_the_user(tmp_path):
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    for names in (NAMES, str(tmp_path / "names.txt")):
        opened = open_model(ToyDetector(num_classes=2), Hints(class_names=names))
        assert opened.detector.class_names == NAMES
    for said in ({"class_names": NAMES}, {}):  # it has names, or does not say how many
        with pytest.raises(InputError, match="`class_names`"):
            open_model(ToyDetector(**said), Hints(class_names=NAMES))


def test_without_a_torch_module_it_is_collected_and_not_corrected():
    opened = open_model(ToyDetector(class_names=NAMES))
    images = logn.models.images.ImageFiles([lambda: IMAGE] * 3)
    (moments,) = opened.collect(images)
    rows = IMAGE.reshape(-1, 3)[:ROWS] * (8 / 255)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-6)
    assert moments.count.tolist() == [3.0 * ROWS] * 3
    assert moments.head.names == (*NAMES, "background")
    with pytest.raises(InputError, match="ToyDetector, which has no torch model"):
        open_correctable(ToyDetector())
    with pytest.raises(InputError, match="is a detector"):
        opened.classify(images)
