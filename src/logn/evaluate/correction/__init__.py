"""From a model and unlabelled images to the corrected model: one call for every kind of model."""
