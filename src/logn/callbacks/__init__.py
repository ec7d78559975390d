"""Callbacks of training frameworks: correct the best checkpoint where a training ends, and log before and after."""
