"""Test an MMDetection model with its logits normalised, by the framework's own test loop.

    python examples/mmdetection/test.py CONFIG CHECKPOINT --method logn --save-to maps/logn.safetensors

Several GPUs: `torchrun --nproc-per-node 8 examples/mmdetection/test.py CONFIG CHECKPOINT --launcher pytorch`.
"""

import argparse
import json
from pathlib import Path

import numpy
from mmdet.utils import register_all_modules
from mmengine.config import Config, DictAction
from mmengine.runner import Runner

import logn
from logn.callbacks import LogNHook
from logn.methods import fit


def number_or_name(text: str) -> float | str:
    """A margin as LogN takes it: `-4` is a number, `min` a name."""
    try:
        return float(text)
    except ValueError:
        return text


def parts_of(chosen: argparse.Namespace) -> dict[str, object]:
    """What the options say of the correction; what was not said is left to LogN."""
    names = ("margin", "strength", "std_power")
    given = {name: getattr(chosen, name) for name in names}
    parts: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    parts |= {"use_std": False} if chosen.no_std else {}
    return {**parts, "method": chosen.method}


def official_maps(runner: Runner, parts: dict[str, object], path: str) -> list[str]:
    """Fit the map of each stage to a moving average over sampled regions of augmented images, one at a time."""
    from logn_research.mmdetection import official_statistics

    runner.load_or_resume()
    loader = runner.build_dataloader({**runner.cfg.train_dataloader, "batch_size": 1})
    layer = logn.locate_logits(runner.model)
    method = str(parts.pop("method"))
    stages = official_statistics(runner.model, loader, layer)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [str(target.with_suffix(f".{stage}{target.suffix}")) for stage in range(len(stages))]
    files = files if len(files) > 1 else [path]
    for file, moments in zip(files, stages, strict=True):
        fit(method, moments=moments, **parts).save(file)
    return files


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint")
    parser.add_argument("--method", default="recommended", help="logn is LogN as published")
    parser.add_argument("--margin", type=number_or_name, help='of logn: a number, or "min" (the paper\'s), "mean", ...')
    parser.add_argument("--strength", type=float, help="0 leaves the means alone (a row of table 2)")
    parser.add_argument("--no-std", action="store_true", help="leave the spreads alone (a row of table 2)")
    parser.add_argument("--std-power", type=float, help="2 divides by the variance, as in the appendix")
    parser.add_argument("--official", action="store_true", help="statistics as the authors take them; one process")
    parser.add_argument("--num-batches", type=int, help="collect from so many batches only")
    parser.add_argument("--maps", nargs="+", help="use these maps instead of collecting")
    parser.add_argument("--save-to", help="file to write the map to")
    parser.add_argument("--plain", action="store_true", help="do not correct the model, for comparison")
    parser.add_argument("--work-dir", default="runs/mmdetection")
    parser.add_argument("--launcher", default="none", choices=["none", "pytorch", "slurm", "mpi"])
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, default={}, help="as in MMDetection's tools")
    chosen = parser.parse_args(arguments)

    # The released `lvis` package, which evaluates, says numpy.float, which NumPy 1.24 removed.
    setattr(numpy, "float", float)  # noqa: B010 - as an attribute it would be taken for the old name
    register_all_modules()
    config = Config.fromfile(chosen.config)
    config.merge_from_dict(chosen.cfg_options)
    config.load_from, config.work_dir, config.launcher = chosen.checkpoint, chosen.work_dir, chosen.launcher
    runner = Runner.from_cfg(config)
    if chosen.official:
        chosen.maps = official_maps(runner, parts_of(chosen), chosen.save_to or f"{chosen.work_dir}/map.safetensors")
        chosen.save_to = None
    if not chosen.plain:
        hook = LogNHook(num_batches=chosen.num_batches, maps=chosen.maps, save_to=chosen.save_to, **parts_of(chosen))
        runner.register_hook(hook)
    metrics = runner.test()
    print(json.dumps({name: float(value) for name, value in metrics.items()}))
    return metrics


if __name__ == "__main__":
    main()
