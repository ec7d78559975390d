"""Values that every entry point shares; nothing is imported here, so that `logn --help` stays quick."""

# The score threshold that a model is used with, unless the user gives another one.
DEFAULT_AT = 0.25
