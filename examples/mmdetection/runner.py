"""What `train.py` and `test.py` share: a configuration with its options, and the framework's runner for it."""

from typing import Any

import numpy
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn


def load_config(path: str) -> Config:
    """Read a configuration; the framework's parts are registered, and what it names in `custom_imports` is imported."""
    # The released `lvis` package, which evaluates, says numpy.float, which NumPy 1.24 removed.
    setattr(numpy, "float", float)  # noqa: B010 - as an attribute it would be taken for the old name
    register_all_modules()
    return Config.fromfile(path)


def make_runner(config: Config, launcher: str, trained: tuple[str, ...] = ()) -> Runner:
    """The runner of a configuration; processes without a GPU talk by gloo.

    Args:
        config: With its working directory.
        launcher: "none" for one process, else how the processes were started.
        trained: Modules whose parameters are trained, by name; all by default. The others are frozen here, before the
            processes agree on which gradients they exchange.
    """
    config.launcher = launcher
    on_cpu = launcher == "pytorch" and not torch.cuda.is_available()
    if on_cpu and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")

    class FrozenFirst(Runner):
        def wrap_model(self, model_wrapper_cfg: Any, model: nn.Module) -> nn.Module:
            for name, parameter in model.named_parameters():
                if trained and not set(trained) & set(name.split(".")):
                    parameter.requires_grad_(False)
            if on_cpu and model_wrapper_cfg is None:
                # By default the framework asks for the GPU of the process.
                model_wrapper_cfg = {"type": "MMDistributedDataParallel", "broadcast_buffers": False}
                model_wrapper_cfg["device_ids"] = None
            return super().wrap_model(model_wrapper_cfg, model)

    return FrozenFirst.from_cfg(config)
