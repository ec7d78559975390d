"""Test an MMDetection model with its logits normalised, by the framework's own test loop.

    python examples/mmdetection/test.py CONFIG CHECKPOINT --method logn --statistics statistics.safetensors

Several GPUs: `torchrun --standalone --nproc-per-node 8 examples/mmdetection/test.py CONFIG CHECKPOINT --launcher
pytorch`. The statistics are collected once: further methods take the file.
"""

import argparse
import json
from pathlib import Path

from logn_research.mmdetection_statistics import load_or_collect, save_stage_maps
from mmengine.config import DictAction
from mmengine.dist import is_main_process
from mmengine.runner import Runner
from runner import load_config, make_runner

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
    return parts | ({"use_std": False} if chosen.no_std else {})


def fitted_maps(runner: Runner, chosen: argparse.Namespace) -> list[str]:
    """Fit the correction of each stage to its statistics, and write the maps to files."""
    maps = [fit(chosen.method, moments=moments, **parts_of(chosen)) for moments in statistics_of(runner, chosen)]
    return save_stage_maps(maps, chosen.save_to or f"{chosen.work_dir}/map.safetensors")


def statistics_of(runner: Runner, chosen: argparse.Namespace) -> tuple[logn.ClassMoments, ...]:
    """Read `--statistics` where it exists; else collect, and write it."""
    path, reuse = chosen.statistics or f"{chosen.work_dir}/statistics.safetensors", bool(chosen.statistics)
    return load_or_collect(runner, path, chosen.num_batches, official=chosen.official, reuse=reuse)


def parse(arguments: list[str] | None) -> argparse.Namespace:
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
    parser.add_argument("--statistics", help="file to read statistics from; if it is missing, to collect them to")
    parser.add_argument("--collect-only", action="store_true", help="write --statistics and test nothing")
    parser.add_argument("--maps", nargs="+", help="use these maps instead of collecting")
    parser.add_argument("--save-to", help="file to write the map to")
    parser.add_argument("--plain", action="store_true", help="do not correct the model, for comparison")
    parser.add_argument("--metrics", help="JSON file to write the metrics to")
    parser.add_argument("--work-dir", default="runs/mmdetection")
    parser.add_argument("--launcher", default="none", choices=["none", "pytorch", "slurm", "mpi"])
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, default={}, help="as in MMDetection's tools")
    chosen = parser.parse_args(arguments)
    if chosen.official and chosen.launcher != "none":
        parser.error("--official is a moving average in one process; leave out --launcher")
    if chosen.collect_only and not chosen.statistics:
        parser.error("--collect-only needs --statistics, the file to write")
    return chosen


def main(arguments: list[str] | None = None) -> dict[str, float]:
    chosen = parse(arguments)
    config = load_config(chosen.config)
    config.resume, config.load_from, config.work_dir = False, chosen.checkpoint, chosen.work_dir
    config.merge_from_dict(chosen.cfg_options)
    runner = make_runner(config, chosen.launcher)
    if chosen.collect_only:
        statistics_of(runner, chosen)
        return {}
    if not chosen.plain:
        maps = chosen.maps or fitted_maps(runner, chosen)
        runner.register_hook(LogNHook(maps=maps))
    metrics = runner.test()
    result = json.dumps({name: float(value) for name, value in metrics.items()})
    if is_main_process():
        print(result)
        if chosen.metrics:
            Path(chosen.metrics).parent.mkdir(parents=True, exist_ok=True)
            Path(chosen.metrics).write_text(result + "\n", encoding="utf-8")
    return metrics


if __name__ == "__main__":
    try:
        main()
    except logn.InputError as error:
        raise SystemExit(str(error)) from None
