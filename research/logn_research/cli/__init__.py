"""The verbs that this package adds to `logn`."""
