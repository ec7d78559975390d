"""Methods on the same predictions: fit, measure, compare, save, print."""
