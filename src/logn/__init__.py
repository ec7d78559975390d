"""LogN: correct a model that was trained on long-tailed data, without retraining, labels or inference cost.

Run the trained model once over unlabelled training images, note the statistics of every class's logit, and correct the
logits at test time:

    layer = logn.locate_logits(model)
    with logn.record(model, layer) as moments:
        for batch in loader:
            model(batch)
    logn.fold(model, layer, logn.recommend(moments).fit(moments))

Arrays of logits: `logn.LogitNormalizer().fit(train_logits).transform(test_logits)`.

Names are imported when they are used, so `import logn` costs next to nothing and needs neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logn.calibrators.affine import ClassAffine as ClassAffine
    from logn.calibrators.fracal import FracalSigmoid as FracalSigmoid
    from logn.calibrators.fracal import fracal as fracal
    from logn.calibrators.normalization import logit_normalization as logit_normalization
    from logn.calibrators.normalization import prior2posterior as prior2posterior
    from logn.calibrators.normalizer import LogitNormalizer as LogitNormalizer
    from logn.calibrators.prior import estimate_prior as estimate_prior
    from logn.calibrators.recommend import Recommendation as Recommendation
    from logn.calibrators.recommend import recommend as recommend
    from logn.calibrators.rivals import inverse_image_frequency as inverse_image_frequency
    from logn.calibrators.rivals import logit_adjustment as logit_adjustment
    from logn.calibrators.rivals import norcal as norcal
    from logn.calibrators.rivals import tau_norm as tau_norm
    from logn.calibrators.rivals import temperature as temperature
    from logn.classes.counts import ClassCounts as ClassCounts
    from logn.classes.dimensions import fractal_dimension as fractal_dimension
    from logn.classes.shares import ClassShares as ClassShares
    from logn.deploy.attach import attach as attach
    from logn.deploy.calibrate import Calibration as Calibration
    from logn.deploy.calibrate import calibrate as calibrate
    from logn.deploy.fold import fold as fold
    from logn.deploy.onnx_fold import fold_onnx as fold_onnx
    from logn.errors import InputError as InputError
    from logn.errors import LogNWarning as LogNWarning
    from logn.errors import MissingExtraError as MissingExtraError
    from logn.evaluate.classification.compare import compare_classification as compare_classification
    from logn.evaluate.classification.metrics import classification_metrics as classification_metrics
    from logn.evaluate.comparison.compare import compare as compare
    from logn.evaluate.comparison.comparison import Comparison as Comparison
    from logn.evaluate.comparison.settings import CompareSettings as CompareSettings
    from logn.evaluate.models.correct import correct as correct
    from logn.evaluate.models.open import detector as detector
    from logn.evaluate.store.predict import predict as predict
    from logn.evaluate.store.store import PredictionStore as PredictionStore
    from logn.evaluate.thresholds.operating_points import operating_points as operating_points
    from logn.evaluate.thresholds.points import OperatingPoints as OperatingPoints
    from logn.logits.images import Preprocessing as Preprocessing
    from logn.logits.layer import LogitLayer as LogitLayer
    from logn.logits.locate import locate_logits as locate_logits
    from logn.logits.proposals import Proposals as Proposals
    from logn.statistics.diagnosis import active_classes as active_classes
    from logn.statistics.moments import ClassMoments as ClassMoments
    from logn.statistics.moments import StatisticsMetadata as StatisticsMetadata
    from logn.statistics.record import record as record
    from logn.statistics.record_onnx import record_onnx as record_onnx

__version__ = "0.2.0"

_HOME = {
    "Calibration": "deploy.calibrate",
    "ClassAffine": "calibrators.affine",
    "ClassCounts": "classes.counts",
    "ClassMoments": "statistics.moments",
    "ClassShares": "classes.shares",
    "CompareSettings": "evaluate.comparison.settings",
    "Comparison": "evaluate.comparison.comparison",
    "FracalSigmoid": "calibrators.fracal",
    "InputError": "errors",
    "LogNWarning": "errors",
    "LogitLayer": "logits.layer",
    "LogitNormalizer": "calibrators.normalizer",
    "MissingExtraError": "errors",
    "OperatingPoints": "evaluate.thresholds.points",
    "PredictionStore": "evaluate.store.store",
    "Preprocessing": "logits.images",
    "Proposals": "logits.proposals",
    "Recommendation": "calibrators.recommend",
    "StatisticsMetadata": "statistics.moments",
    "active_classes": "statistics.diagnosis",
    "attach": "deploy.attach",
    "calibrate": "deploy.calibrate",
    "classification_metrics": "evaluate.classification.metrics",
    "compare": "evaluate.comparison.compare",
    "compare_classification": "evaluate.classification.compare",
    "correct": "evaluate.models.correct",
    "detector": "evaluate.models.open",
    "estimate_prior": "calibrators.prior",
    "fold": "deploy.fold",
    "fold_onnx": "deploy.onnx_fold",
    "fracal": "calibrators.fracal",
    "fractal_dimension": "classes.dimensions",
    "inverse_image_frequency": "calibrators.rivals",
    "locate_logits": "logits.locate",
    "logit_adjustment": "calibrators.rivals",
    "logit_normalization": "calibrators.normalization",
    "norcal": "calibrators.rivals",
    "operating_points": "evaluate.thresholds.operating_points",
    "predict": "evaluate.store.predict",
    "prior2posterior": "calibrators.normalization",
    "recommend": "calibrators.recommend",
    "record": "statistics.record",
    "record_onnx": "statistics.record_onnx",
    "tau_norm": "calibrators.rivals",
    "temperature": "calibrators.rivals",
}

# Several names under one.
_MODULES = ("methods", "ray")

__all__ = [*sorted(_HOME), "__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at first use."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from logn.errors import MissingExtraError

        raise MissingExtraError("torch", extra="torch") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *_HOME, *_MODULES})
