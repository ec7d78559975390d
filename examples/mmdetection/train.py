"""Train a row of the paper's table with MMDetection: any of our losses, from the start or on a trained detector.

    python examples/mmdetection/train.py examples/mmdetection/mask_rcnn_r101_random_lvis_linear.py \
        --loss eql-v2 --counts data/lvis_v1/annotations/lvis_v1_train.json --work-dir runs/eql-v2

Several GPUs: `torchrun --nproc-per-node 8 examples/mmdetection/train.py … --launcher pytorch`.
"""

import argparse
from typing import Any

import numpy
from mmdet.utils import register_all_modules
from mmengine.config import Config, DictAction
from mmengine.runner import Runner

# What stays trainable: all of it, the class layer (BAGS), or everything behind the backbone (LOCE).
PARTS = {"all": ("",), "classifier": ("roi_head.bbox_head.fc_cls",), "heads": ("rpn_head", "roi_head")}


def use_loss(config: Any, loss: str, counts: str) -> None:
    """Put one of our losses into a configuration; LOCE gets its memory of features, too."""
    config.setdefault("custom_imports", {"imports": []})["imports"].append("logn_research.mmdetection")
    head = config.model.roi_head
    wrapped = {"type": "LongTailLoss", "loss": loss, "counts": counts}
    for stage in head.bbox_head if isinstance(head.bbox_head, list) else [head.bbox_head]:
        stage.loss_cls = wrapped
    if loss.partition(":")[0] == "loce":
        if isinstance(head.bbox_head, list):
            raise SystemExit("LOCE's memory is for detectors with one stage; a cascade trains with the other losses.")
        head.type = "MemoryRoIHead"


def main(arguments: list[str] | None = None) -> Runner:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--loss", help="eql, eql-v2, bags, loce, seesaw:p=0.8, ...; the configuration's by default")
    parser.add_argument("--counts", help="training annotations or class counts, for --loss")
    parser.add_argument("--start", help="checkpoint to go on from, with the same class layer but for its width")
    parser.add_argument("--only", default="all", choices=[*PARTS], help="the part that is trained")
    parser.add_argument("--epochs", type=int, help="instead of the configuration's")
    parser.add_argument("--work-dir", default="runs/mmdetection")
    parser.add_argument("--launcher", default="none", choices=["none", "pytorch", "slurm", "mpi"])
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, default={}, help="as in MMDetection's tools")
    chosen = parser.parse_args(arguments)
    if chosen.loss and not chosen.counts:
        parser.error("--loss needs --counts, the training annotations")

    # The released `lvis` package, which evaluates after the last epoch, says numpy.float, which NumPy 1.24 removed.
    setattr(numpy, "float", float)  # noqa: B010 - as an attribute it would be taken for the old name
    register_all_modules()
    config = Config.fromfile(chosen.config)
    config.merge_from_dict(chosen.cfg_options)
    if chosen.loss:
        use_loss(config, chosen.loss, chosen.counts)
    if chosen.epochs:
        config.train_cfg.max_epochs = chosen.epochs
    config.load_from, config.work_dir, config.launcher = chosen.start, chosen.work_dir, chosen.launcher
    runner = Runner.from_cfg(config)
    for name, parameter in runner.model.named_parameters():
        trained = name.removeprefix("module.").startswith(PARTS[chosen.only])
        parameter.requires_grad_(trained and parameter.requires_grad)
    runner.train()
    return runner


if __name__ == "__main__":
    main()
