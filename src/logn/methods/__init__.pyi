# The public names of `logn.methods`, each imported from its module when it is first used.
from logn.methods.catalog import METHODS as METHODS
from logn.methods.catalog import fit as fit
from logn.methods.catalog import parse as parse
from logn.methods.fractal_calibration import FracalSigmoid as FracalSigmoid
from logn.methods.fractal_calibration import fracal as fracal
from logn.methods.prior import PriorEstimate as PriorEstimate
from logn.methods.prior import estimate_prior as estimate_prior
from logn.methods.rivals import inverse_image_frequency as inverse_image_frequency
from logn.methods.rivals import logit_adjustment as logit_adjustment
from logn.methods.rivals import norcal as norcal
from logn.methods.rivals import tau_norm as tau_norm
from logn.methods.rivals import temperature as temperature
