# The public names: `__init__.py` reads this file, and imports each name from its module when it is first used.
from logn import methods as methods
from logn import ray as ray
from logn import thresholds as thresholds
from logn.calibrators.affine import ClassAffine as ClassAffine
from logn.calibrators.normalization import logit_normalization as logit_normalization
from logn.calibrators.normalization import prior2posterior as prior2posterior
from logn.calibrators.normalizer import LogitNormalizer as LogitNormalizer
from logn.calibrators.recommend import recommend as recommend
from logn.classes.counts import ClassCounts as ClassCounts
from logn.deploy.attach import attach as attach
from logn.deploy.calibrate import calibrate as calibrate
from logn.deploy.fold import fold as fold
from logn.deploy.onnx_fold import fold_onnx as fold_onnx
from logn.errors import InputError as InputError
from logn.errors import LogNWarning as LogNWarning
from logn.errors import MissingExtraError as MissingExtraError
from logn.evaluate.comparison.compare import compare as compare
from logn.evaluate.comparison.comparison import Comparison as Comparison
from logn.evaluate.models.correct import correct as correct
from logn.evaluate.models.open import detector as detector
from logn.evaluate.store.predict import predict as predict
from logn.evaluate.store.store import PredictionStore as PredictionStore
from logn.evaluate.thresholds.choose import operating_points as operating_points
from logn.evaluate.thresholds.points import OperatingPoints as OperatingPoints
from logn.logits.layer import LogitLayer as LogitLayer
from logn.logits.locate import locate_logits as locate_logits
from logn.logits.proposals import Proposals as Proposals
from logn.statistics.moments import ClassMoments as ClassMoments
from logn.statistics.record import record as record
from logn.statistics.record_onnx import record_onnx as record_onnx

__version__: str
