"""Putting a map into a model: attach it, fold it into the weights."""
