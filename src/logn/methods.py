"""The methods that LogN is compared with, and all methods by name.

Example:
    >>> fit("norcal:gamma=1", counts=[100, 10, 1]).shift.round(6)
    array([-4.60517 , -2.302585, -0.      ])
    >>> list(METHODS)
    ['none', 'recommended', 'logn', 'p2p', 'loga', 'norcal', 'fracal', 'iif', 'tau-norm', 'temperature']
"""

from logn.calibrators.fracal import FracalSigmoid as FracalSigmoid
from logn.calibrators.fracal import fracal as fracal
from logn.calibrators.methods import METHODS as METHODS
from logn.calibrators.methods import fit as fit
from logn.calibrators.methods import parse as parse
from logn.calibrators.prior import PriorEstimate as PriorEstimate
from logn.calibrators.prior import estimate_prior as estimate_prior
from logn.calibrators.rivals import inverse_image_frequency as inverse_image_frequency
from logn.calibrators.rivals import logit_adjustment as logit_adjustment
from logn.calibrators.rivals import norcal as norcal
from logn.calibrators.rivals import tau_norm as tau_norm
from logn.calibrators.rivals import temperature as temperature
