"""The sentence about maps that move scores far names a way out that there is."""

import numpy as np

import logn
from logn.calibrators.score_shift_warning import form_warning
from logn.statistics.metadata import StatisticsMetadata


def classifier_rows():
    """A classifier that is sure of one class, whatever it sees."""
    return np.random.default_rng(1).standard_normal((300, 20)) + np.linspace(9, 0, 20) * np.array([1] + [0.5] * 19)


def test_the_balanced_form_is_not_told_to_be_its_own_remedy():
    moments = logn.ClassMoments(20, sample_rows=300, metadata=StatisticsMetadata(activation="softmax"))
    moments.update(classifier_rows())
    balanced = logn.logit_normalization(moments, margin="balance", relative_std=True)
    sentence = form_warning(balanced, moments)
    assert "lowers the mean confidence" in sentence
    assert "logn:balanced" not in sentence
    paper = form_warning(logn.logit_normalization(moments, form="paper"), moments)
    assert paper.endswith("or use logn:balanced, which keeps the model's common scale.")


def test_a_balanced_detector_is_told_to_choose_its_threshold():
    moments = logn.ClassMoments(21, sample_rows=300, metadata=StatisticsMetadata(background=-1))
    moments.update(np.hstack([classifier_rows(), np.full((300, 1), 9.0)]))
    affine = logn.logit_normalization(moments, margin="balance", relative_std=True)
    sentence = form_warning(affine, moments, threshold=0.6)
    assert sentence.endswith("per 1,000 rows: choose the score threshold anew.")
