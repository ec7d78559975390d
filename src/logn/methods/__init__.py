"""The methods that LogN is compared with, and all methods by name.

Example:
    >>> from logn.methods import METHODS, fit
    >>> fit("norcal:gamma=1", counts=[100, 10, 1]).shift.round(6)
    array([-4.60517 , -2.302585, -0.      ])
    >>> list(METHODS)
    ['none', 'recommended', 'logn', 'p2p', 'loga', 'norcal', 'fracal', 'iif', 'tau-norm', 'temperature']
"""

from __future__ import annotations

from logn.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
