# The public names of `logn.callbacks`, each imported from its module when it is first used.
from logn.callbacks.mmdetection import LogNHook as LogNHook
from logn.callbacks.ultralytics import LogNCallback as LogNCallback
