"""The methods that LogN is compared with, and all methods by name.

Example:
    >>> from logn.methods import METHODS, fit
    >>> fit("norcal:gamma=1", counts=[100, 10, 1]).shift.round(6)
    array([-4.60517 , -2.302585, -0.      ])
    >>> list(METHODS)
    ['none', 'recommended', 'logn', 'p2p', 'loga', 'norcal', 'fracal', 'iif', 'tau-norm', 'temperature']
"""

from __future__ import annotations

from logn.methods.catalog import METHODS as METHODS
from logn.methods.catalog import Spec as Spec
from logn.methods.catalog import fit as fit
from logn.methods.catalog import parse as parse
from logn.methods.deployment_mix import PriorEstimate as PriorEstimate
from logn.methods.deployment_mix import estimate_prior as estimate_prior
from logn.methods.fracal import fracal as fracal
from logn.methods.inverse_image_frequency import inverse_image_frequency as inverse_image_frequency
from logn.methods.logit_adjustment import logit_adjustment as logit_adjustment
from logn.methods.logit_normalization import logit_normalization as logit_normalization
from logn.methods.norcal import norcal as norcal
from logn.methods.prior2posterior import prior2posterior as prior2posterior
from logn.methods.tau_norm import tau_norm as tau_norm
from logn.methods.temperature import temperature as temperature
