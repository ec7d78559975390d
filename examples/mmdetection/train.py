"""Train a row of the paper's Table 1 with MMDetection: any of our losses, from the start or on a trained detector.

    python examples/mmdetection/train.py examples/mmdetection/mask_rcnn_r101_random_lvis_linear.py \
        --loss eql-v2 --counts data/lvis_v1/annotations/lvis_v1_train.json --work-dir runs/eql-v2

Several GPUs: `torchrun --standalone --nproc-per-node 8 examples/mmdetection/train.py … --launcher pytorch`.
The run leaves its full configuration in its working directory, for `test.py`.
"""

import argparse
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction
from mmengine.runner import Runner
from runner import load_config, make_runner

MODULE = "logn_research.mmdetection"
# The modules that stay trainable: all, the class layer (BAGS), or what LOCE trains in its second stage.
PARTS = {"all": (), "classifier": ("fc_cls",), "heads": ("fc_cls", "fc_reg", "rpn_head", "mask_head")}


def stages_of(config: Config) -> list[Any]:
    """The box heads of a configuration: one, or one per stage of a cascade."""
    heads = config.model.roi_head.bbox_head
    return heads if isinstance(heads, list) else [heads]


def import_ours(config: Config) -> None:
    """Register our modules now, and name them in the configuration so that whoever reads the dumped one does, too."""
    __import__(MODULE)
    before = config.get("custom_imports", {}).get("imports", [])
    names = [before] if isinstance(before, str) else [*before]
    config.custom_imports = {"imports": list(dict.fromkeys([*names, MODULE])), "allow_failed_imports": False}


def use_loss(config: Config, loss: str, counts: str, *, feature_memory: bool = False) -> None:
    """Put one of our losses into a configuration; LOCE gets a head that knows the object of each region."""
    import_ours(config)
    config.model.type = "LongTailRCNN"
    for stage in stages_of(config):
        stage.type = "LongTailBBoxHead"
        stage.loss_cls = {"type": "LongTailLoss", "loss": loss, "counts": counts}
    if loss.partition(":")[0] == "loce":
        if isinstance(config.model.roi_head.bbox_head, list):
            raise SystemExit("LOCE is for detectors with one stage; a cascade trains with the other losses.")
        config.model.roi_head.update(type="EquilibriumRoIHead", feature_memory=feature_memory)
        config.custom_hooks = [*config.get("custom_hooks", []), {"type": "FillScoresHook"}]


def normalize_in_training(config: Config) -> None:
    """Train with batch normalisation of the logits inside the loss, as the authors' code does."""
    import_ours(config)
    for stage in stages_of(config):
        stage.type = "LogitNormHead"


def reschedule(config: Config, epochs: int, drops: list[int]) -> None:
    """Train for another number of epochs; after those of `drops` the learning rate is a tenth."""
    config.train_cfg.max_epochs = epochs
    for scheduler in config.param_scheduler:
        if scheduler.type == "MultiStepLR":
            scheduler.update(end=epochs, milestones=drops)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--loss", help="eql, eql-v2, bags, loce, seesaw:p=0.8, ...; the configuration's by default")
    parser.add_argument("--counts", help="training annotations or class counts, for --loss")
    parser.add_argument("--feature-memory", action="store_true", help="LOCE's sampler MFS, for --loss loce")
    parser.add_argument("--normalize-logits", action="store_true", help="LogitNormHead, as the authors' code trains")
    parser.add_argument("--load-from", help="checkpoint to go on from, with the same class layer but for its width")
    parser.add_argument("--only", default="all", choices=[*PARTS], help="the part that is trained")
    parser.add_argument("--epochs", type=int, help="instead of the configuration's; needs --drops")
    parser.add_argument("--drops", type=int, nargs="+", help="after which epochs the learning rate is a tenth")
    parser.add_argument("--rate", type=float, help="learning rate, for 16 images an iteration")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --work-dir, if any")
    parser.add_argument("--work-dir", default="runs/mmdetection")
    parser.add_argument("--launcher", default="none", choices=["none", "pytorch", "slurm", "mpi"])
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, default={}, help="as in MMDetection's tools")
    chosen = parser.parse_args(arguments)
    if chosen.loss and not chosen.counts:
        parser.error("--loss needs --counts, the training annotations")
    if chosen.loss and chosen.normalize_logits:
        parser.error("--normalize-logits is for the configuration's own loss; leave out --loss")
    if (chosen.epochs is None) != (chosen.drops is None):
        parser.error("--epochs and --drops belong together: the configuration's drops fit its own epochs")
    return chosen


def main(arguments: list[str] | None = None) -> Runner:
    chosen = parse(arguments)
    config = load_config(chosen.config)
    if chosen.loss:
        use_loss(config, chosen.loss, chosen.counts, feature_memory=chosen.feature_memory)
    if chosen.normalize_logits:
        normalize_in_training(config)
    if chosen.epochs:
        reschedule(config, chosen.epochs, chosen.drops)
    if chosen.rate:
        config.optim_wrapper.optimizer.lr = chosen.rate
    resumed = chosen.resume and (Path(chosen.work_dir) / "last_checkpoint").is_file()
    config.resume, config.load_from, config.work_dir = resumed, None if resumed else chosen.load_from, chosen.work_dir
    config.merge_from_dict(chosen.cfg_options)
    runner = make_runner(config, chosen.launcher, PARTS[chosen.only])
    runner.train()
    return runner


if __name__ == "__main__":
    main()
