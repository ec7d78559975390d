"""A row of the paper's Table 1 on LVIS v1 by one command: train, collect, correct, test, print it beside the paper's.

    python examples/mmdetection/table1.py examples/mmdetection/mask_rcnn_r50_rfs_lvis.py --data data/lvis_v1 --gpus 8

The row `LogN` is the default; `--row "EQL v2"` and so on train the others, in the form of the configuration that the
row has (linear, or LOCE's normalised mask). Call it again to go on where it stopped. `--dry-run` prints the commands
and what they cost.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from logn_research.datasets.samplers import repeat_factors
from logn_research.experiments.paper import COMPONENTS, TABLE1, PaperRow, paper_row

HERE = Path(__file__).parent
FRAMEWORKS = {
    "mask_rcnn_r50": "Mask-R50",
    "mask_rcnn_r101": "Mask-R101",
    "cascade_mask_rcnn_r101": "Cascade-R101",
}
# Seconds on a GPU for an image, in training and in testing: assumptions, to be replaced by `--seconds`.
SECONDS = {"mask_rcnn_r50": (0.25, 0.2), "mask_rcnn_r101": (0.325, 0.25), "cascade_mask_rcnn_r101": (0.5, 0.4)}
# Weights of each detector in millions; a checkpoint has them and the optimiser's momentum, four bytes each.
MILLIONS = {"mask_rcnn_r50": 50, "mask_rcnn_r101": 69, "cascade_mask_rcnn_r101": 101}
# Images of LVIS v1 with an annotation, and those that are tested.
TRAIN_IMAGES, TEST_IMAGES = 99_388, 19_809
BAGS = "--loss bags --only classifier --epochs 12 --drops 8 11 --rate 0.01"
LOCE = "--loss loce --only heads --epochs 6 --drops 3 5"
NUMBERS = {"box AP": "bbox_AP", "AP": "segm_AP", "APr": "segm_APr", "APc": "segm_APc", "APf": "segm_APf"}


@dataclass(frozen=True)
class Row:
    """How a row of the table is trained.

    Args:
        form: Of the configuration: "" is normalised, "_linear" linear, "_normed_mask" LOCE's.
        options: Of `train.py`.
        epochs: How many the row itself trains.
        second: Whether it goes on from the cross-entropy training of its form.
    """

    form: str
    options: str = ""
    epochs: int = 24
    second: bool = False


ROWS = {
    "LogN": Row(""),
    "CE": Row("_linear"),
    "EQL": Row("_linear", "--loss eql"),
    "EQL v2": Row("_linear", "--loss eql-v2"),
    "Seesaw": Row("", "--loss seesaw"),
    "BAGS": Row("_linear", BAGS, 12, second=True),
    "LOCE": Row("_normed_mask", LOCE, 6, second=True),
    "LOCE + MFS": Row("_normed_mask", f"{LOCE} --feature-memory", 6, second=True),
}


@dataclass(frozen=True)
class Method:
    """A correction that is tested.

    Args:
        spec: As `logn fit --method` takes it.
        population: Statistics that it is fitted to: "exact", all proposals of the training images, or "official", a
            moving average over the 512 regions that training samples.
        paper: The paper's row for it, on the normalised head.
    """

    spec: str
    population: str = "exact"
    paper: str = ""


METHODS = {
    "LogN, exact": Method("logn", paper="LogN"),
    "LogN, official": Method("logn", "official", paper="LogN"),
    "recommended": Method("recommended"),
    "LogN, square root of std": Method("logn:std_power=0.5"),
}
LOGA = "loga:priors=false"


@dataclass(frozen=True)
class Step:
    """A command, the file that it leaves, and what it costs."""

    title: str
    command: list[str]
    leaves: Path
    gpu_hours: float = 0.0
    gigabytes: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What a row takes."""

    chosen: argparse.Namespace

    @property
    def model(self) -> str:
        """The detector, as the configurations name it."""
        return re.sub(r"_(random|rfs)$", "", self.chosen.name)

    @property
    def sampler(self) -> str:
        """Of the images: random or rfs."""
        return "rfs" if self.chosen.name.endswith("_rfs") else "random"

    @property
    def row(self) -> Row:
        """How the row is trained."""
        return ROWS[self.chosen.row]

    @property
    def counts(self) -> Path:
        """The training annotations."""
        return self.chosen.data / "annotations/lvis_v1_train.json"

    def run(self, *, first: bool = False) -> Path:
        """The working directory of the training; `first` for that of the first stage."""
        name = f"{self.chosen.name}_lvis{self.row.form}"
        loss = self.chosen.row.lower().replace(" + ", "-").replace(" ", "-")
        plain = first or "--loss" not in self.row.options
        return self.chosen.out / (name if plain else f"{name}-{loss}")

    def config(self) -> Path:
        """The configuration, in the form that the row has."""
        return HERE / f"{self.chosen.name}_lvis{self.row.form}.py"

    def processes(self, script: str, count: int) -> list[str]:
        """The start of a command, on so many GPUs."""
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        return [sys.executable, *several, str(HERE / script)]

    def options(self, *more: str) -> list[str]:
        """The configuration's options: where the data are, and what was given."""
        train = "train_dataloader.dataset" + (".dataset" if self.sampler == "rfs" else "")
        roots = [f"{part}.data_root={self.chosen.data}/" for part in (train, "val_dataloader.dataset")]
        roots += [f"test_dataloader.dataset.data_root={self.chosen.data}/"]
        files = [
            f"{part}_evaluator.ann_file={self.chosen.data}/annotations/lvis_v1_val.json" for part in ("val", "test")
        ]
        return ["--cfg-options", *roots, *files, *more, *self.chosen.cfg_options]

    def train(self, config: Path, run: Path, extra: Sequence[str], epochs: int) -> Step:
        """Train a detector; one checkpoint is kept, from which it goes on when it was stopped."""
        images = epochs * self.chosen.images
        ends = ["default_hooks.checkpoint.max_keep_ckpts=1", f"auto_scale_lr.enable={self.chosen.gpus != 8}"]
        command = [*self.processes("train.py", self.chosen.gpus), str(config), *extra, "--work-dir", str(run)]
        command += ["--resume", "--launcher", "pytorch", *self.options(*ends)]
        size = 2 * 8 * MILLIONS[self.model] / 1000  # a new checkpoint is written before the old one is removed
        return Step(f"train {run.name}", command, run / "trained", images * self.chosen.seconds[0] / 3600, size)

    def test(self, title: str, extra: Sequence[str], leaves: Path, *, images: int, official: bool = False) -> Step:
        """Test, or collect statistics; the official ones in one process."""
        run = self.run()
        start = [sys.executable, str(HERE / "test.py")] if official else self.processes("test.py", self.chosen.gpus)
        command = [*start, str(run / self.config().name), "@checkpoint", *extra, "--work-dir", str(run / leaves.stem)]
        command += ([] if official else ["--launcher", "pytorch"]) + self.options("model.test_cfg.rcnn.score_thr=0.0")
        return Step(f"{title}: {run.name}", command, leaves, images * self.chosen.seconds[1] / 3600, 0.01)

    def steps(self) -> Iterator[Step]:
        """All that the row takes, in order."""
        run, row = self.run(), self.row
        extra = shlex.split(row.options)
        if "--loss" in extra:
            extra += ["--counts", str(self.counts)]
        if row.second:
            yield self.train(self.config(), self.run(first=True), [], 24)
            extra += ["--load-from", "@start"]
        yield self.train(self.config(), run, extra, row.epochs)
        for name in dict.fromkeys(method.population for method in METHODS.values()):
            file = run / f"{name}.safetensors"
            official = name == "official"
            given = ["--statistics", str(file), "--collect-only", *(["--official"] if official else [])]
            images = self.chosen.images if official else self.chosen.train_images
            yield self.test(f"collect {name}", given, run / f"{name}.collected", images=images, official=official)
        yield self.test("test plain", self.metrics("plain", "--plain"), run / "plain.json", images=TEST_IMAGES)
        for title, method in METHODS.items():
            name = slug(title)
            given = ["--method", method.spec, "--statistics", str(run / f"{method.population}.safetensors")]
            yield self.test(f"test {title}", self.metrics(name, *given), run / f"{name}.json", images=TEST_IMAGES)
        if self.chosen.row == "LogN":
            loga = run / "loga.safetensors"
            fit = [sys.executable, "-m", "logn", "fit", "--method", LOGA, "--counts", str(self.counts)]
            yield Step("fit LogA", [*fit, "--background", "last", "--overwrite", "-o", str(loga)], loga)
            given = self.metrics("LogA", "--maps", str(loga))
            yield self.test("test LogA", given, run / "loga.json", images=TEST_IMAGES)

    def metrics(self, title: str, *extra: str) -> list[str]:
        """Options that name the file of the metrics and that of the map."""
        name = slug(title)
        more = [] if {"--plain", "--maps"} & {*extra} else ["--save-to", str(self.run() / f"{name}.map.safetensors")]
        return [*extra, *more, "--metrics", str(self.run() / f"{name}.json")]

    def resolved(self, command: list[str]) -> list[str]:
        """The command with the checkpoints that the trainings left."""
        marks = {"@checkpoint": (self.run(), self.row.epochs), "@start": (self.run(first=True), 24)}
        for word, (run, epochs) in marks.items():
            mark = run / "trained"
            path = mark.read_text().strip() if mark.is_file() else f"{run}/epoch_{epochs}.pth"
            command = [path if part == word else part for part in command]
        return command


def slug(title: str) -> str:
    """A name for files: `LogN, exact` is `logn-exact`."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def count_images(file: Path, *, repeated: bool) -> tuple[int, int]:
    """Training images of an epoch, with the repeats of RFS, and images altogether; LVIS's own without the file."""
    if not file.is_file():
        return TRAIN_IMAGES, TRAIN_IMAGES
    content = json.loads(file.read_text(encoding="utf-8"))
    classes: dict[int, set[int]] = {}
    for item in content["annotations"]:
        classes.setdefault(item["image_id"], set()).add(item["category_id"])
    if not repeated:
        return len(classes), len(content["images"])
    numbers = sorted({number for inside in classes.values() for number in inside})
    images_of = {number: sum(number in inside for inside in classes.values()) for number in numbers}
    factors = dict(zip(numbers, repeat_factors([*images_of.values()], num_images=len(classes)), strict=True))
    return int(sum(np.ceil(max(factors[n] for n in inside)) for inside in classes.values())), len(content["images"])


def run_step(plan: Plan, step: Step) -> None:
    """Run a command, its output in a file beside its result; leave a mark that it is done."""
    log = step.leaves.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = plan.resolved(step.command)
    print(f"{step.title}\n  {shlex.join(command)}\n  log: {log}", flush=True)
    with log.open("a", encoding="utf-8") as output:
        code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode  # noqa: S603
    if code:
        raise SystemExit(f"{step.title} failed; read {log}, then call this again to go on.")
    if step.leaves.name == "trained":
        step.leaves.write_text((step.leaves.parent / "last_checkpoint").read_text())
    elif not step.leaves.is_file():
        step.leaves.touch()


def print_costs(plan: Plan, steps: Sequence[Step]) -> None:
    """The commands, and what each takes."""
    for step in steps:
        done = ", done" if step.leaves.is_file() else ""
        print(f"# {step.title}: {step.gpu_hours / 24:.2f} GPU days, {step.gigabytes:.1f} GB{done}")
        print(shlex.join(plan.resolved(step.command)))
    days = sum(step.gpu_hours for step in steps) / 24
    disk = sum(step.gigabytes for step in steps)
    chosen = plan.chosen
    train, test = chosen.seconds
    print(f"\nAll: {days:.1f} GPU days and {disk:.1f} GB; on {chosen.gpus} GPUs about {days / chosen.gpus:.1f} days.")
    print(f"Assumed: {train} s on a GPU for a training image, {test} s for a tested one (--seconds TRAIN TEST).")
    print(f"An epoch has {chosen.images:,} images" + ("." if plan.counts.is_file() else ", LVIS's without repeats."))


def numbers_of(file: Path) -> list[float | None]:
    """Box AP, then AP, APr, APc and APf of masks, in points; None for what could not be measured."""
    found = {name.rpartition("/")[2]: value for name, value in json.loads(file.read_text()).items()}
    values = [found.get(name) for name in NUMBERS.values()]
    return [None if value is None or value < 0 else 100 * value for value in values]


def paper_numbers(row: PaperRow | None) -> list[float | None]:
    return [None] * 5 if row is None else [row.box_ap, row.ap, row.rare, row.common, row.frequent]


def print_row(plan: Plan) -> None:
    """What was measured, each line followed by the paper's."""
    framework, name = FRAMEWORKS[plan.model], plan.chosen.row
    corrected = {"loga": "LogA"} | {slug(title): method.paper for title, method in METHODS.items()}
    titles = {"plain": "plain", "loga": "LogA"} | {slug(title): title for title in METHODS}
    width = max(map(len, titles.values()))
    print(f"\n{framework}, {plan.sampler}: {name}\n" + " " * (width + 8) + "".join(f"{n:>8}" for n in NUMBERS))
    for file in ("plain", *(slug(title) for title in METHODS), "loga"):
        path = plan.run() / f"{file}.json"
        if not path.is_file():
            continue
        if name != "LogN":
            theirs = paper_row(TABLE1, name, sampler_of(plan), framework) if file == "plain" else None
        elif file == "plain":
            main = (framework, plan.sampler) == ("Mask-R101", "rfs")
            theirs = COMPONENTS[0] if main else None
        else:
            theirs = paper_row(TABLE1, corrected[file], plan.sampler, framework)
        print_line(f"{titles[file]:{width}}   here", numbers_of(path))
        if theirs is not None:
            print_line(f"{'':{width}}  paper", paper_numbers(theirs))


def print_line(title: str, numbers: Sequence[float | None]) -> None:
    print(title + " " + "".join(f"{'-' if number is None else f'{number:.1f}':>8}" for number in numbers))


def sampler_of(plan: Plan) -> str:
    """The sampler that the table names: LOCE's memory is one of its own."""
    return "mfs" if plan.chosen.row == "LOCE + MFS" else plan.sampler


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="one of the configurations here, such as mask_rcnn_r50_rfs_lvis.py")
    parser.add_argument("--row", default="LogN", choices=[*ROWS])
    parser.add_argument("--data", type=Path, default=Path("data/lvis_v1"), help="LVIS v1's folder")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/table1"))
    parser.add_argument("--seconds", type=float, nargs=2, help="on a GPU for a training and for a tested image")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and their costs only")
    parser.add_argument("--cfg-options", nargs="+", default=[], help="for all commands, as in MMDetection's tools")
    chosen = parser.parse_args(arguments)
    known = re.fullmatch(rf"({'|'.join(FRAMEWORKS)})_(random|rfs)_lvis(_linear|_normed_mask)?", chosen.config.stem)
    if known is None:
        parser.error(f"{chosen.config} is none of the configurations beside this script")
    chosen.name = f"{known[1]}_{known[2]}"
    plan = Plan(chosen)
    if paper_row(TABLE1, chosen.row, sampler_of(plan), FRAMEWORKS[known[1]]) is None or not plan.config().is_file():
        parser.error(f"Table 1 has no row {chosen.row} for {chosen.name}")
    if not chosen.dry_run and not plan.counts.is_file():
        parser.error(f"{plan.counts} is missing; --data names LVIS v1's folder")
    chosen.seconds = chosen.seconds or SECONDS[known[1]]
    chosen.images, chosen.train_images = count_images(plan.counts, repeated=plan.sampler == "rfs")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    plan = Plan(parse(arguments))
    steps = [*plan.steps()]
    if plan.chosen.dry_run:
        return print_costs(plan, steps)
    for step in steps:
        if not step.leaves.is_file():
            run_step(plan, step)
    return print_row(plan)


if __name__ == "__main__":
    main()
