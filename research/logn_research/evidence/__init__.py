"""Measurements that pages of this package rest on, each with the command that repeats it."""
