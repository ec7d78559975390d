"""Losses for long-tailed data, one file each: what is compared, and what trained the models that LogN corrects."""
