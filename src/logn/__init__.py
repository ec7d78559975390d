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
nothing and needs neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib

__version__ = "0.3.0"


def _modules() -> dict[str, str]:
    """The module of each public name, from the lines `from MODULE import NAME as NAME` of the stub."""
    with open(f"{__file__}i", encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from ")]
    return {words[3]: words[1] for words in imports}


_MODULES = _modules()
__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name from its module at first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if _MODULES[name] == __name__:
            return importlib.import_module(f"{__name__}.{name}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from logn.errors import MissingExtraError

        raise MissingExtraError("torch", extra="torch") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *_MODULES})
