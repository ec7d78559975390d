"""LogN: correct a model that was trained on long-tailed data, without retraining, labels or inference cost.

Run the trained model once over unlabelled training images, note the statistics of every class's logit, and correct the
logits at test time:

    layer = logn.locate_logits(model)
    with logn.record(model, layer) as moments:
        for batch in loader:
            model(batch)
    logn.fold(model, layer, logn.recommend(moments).fit(moments))

Arrays of logits: `logn.LogitNormalizer().fit(train_logits).transform(test_logits)`.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so `import logn` costs next to
nothing and does not need torch.
"""

from __future__ import annotations

from logn.base.lazy import attach_stub

__version__ = "0.4.0"

__getattr__, __dir__, _names = attach_stub(__name__, __file__)
__all__ = [*_names, "__version__"]
