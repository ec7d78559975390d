# The public names: `__init__.py` reads this file, and imports each name from its module when it is first used.
from logn import methods as methods
from logn import ray as ray
from logn import thresholds as thresholds
from logn.correction.calibrate import calibrate as calibrate
from logn.correction.correct import correct as correct
from logn.data.class_counts import ClassCounts as ClassCounts
from logn.errors import InputError as InputError
from logn.errors import LogNWarning as LogNWarning
from logn.errors import MissingExtraError as MissingExtraError
from logn.measure.comparison.compare import compare as compare
from logn.measure.comparison.comparison import Comparison as Comparison
from logn.methods.affine import ClassAffine as ClassAffine
from logn.methods.normalization import logit_normalization as logit_normalization
from logn.methods.normalization import prior2posterior as prior2posterior
from logn.methods.normalizer import LogitNormalizer as LogitNormalizer
from logn.methods.recommend import recommend as recommend
from logn.models.layer import LogitLayer as LogitLayer
from logn.models.locate import locate_logits as locate_logits
from logn.models.onnx.fold import fold_onnx as fold_onnx
from logn.models.onnx.record import record_onnx as record_onnx
from logn.models.open import detector as detector
from logn.models.proposals import Proposals as Proposals
from logn.models.torch.attach import attach as attach
from logn.models.torch.fold import fold as fold
from logn.models.torch.record import record as record
from logn.predictions.predict import predict as predict
from logn.predictions.store import PredictionStore as PredictionStore
from logn.statistics.moments import ClassMoments as ClassMoments
from logn.thresholds.choose import operating_points as operating_points
from logn.thresholds.points import OperatingPoints as OperatingPoints

__version__: str
