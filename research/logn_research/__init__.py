"""Research around LogN: what trains detectors, and what the recommendations of the library rest on.

A package of its own, which imports `logn`; `logn` never imports it.
"""
