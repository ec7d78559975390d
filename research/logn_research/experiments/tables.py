"""The rows of the paper's tables: each a trained detector, and what is done to its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from logn_research.experiments.paper import (
    COMPONENTS,
    FRAMEWORKS,
    MAIN_FRAMEWORK,
    MARGINS,
    TABLE1,
    paper_row,
)
from logn_research.experiments.specs import ModelSpec, Problem

#: Statistics of each class's own proposals, or of those that are also recognised.
POSITIVES, RECOGNISED = "positives", "recognised positives"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        label: Name of the row.
        model: The detector.
        method: What is done to its logits, such as `logn:margin=0`; `none` for nothing.
        statistics: Empty for all proposals, or `POSITIVES` or `RECOGNISED`.
        paper: The paper's numbers.
    """

    label: str
    model: ModelSpec
    method: str = "none"
    statistics: str = ""
    paper: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Name of the correction in files."""
        return f"{self.method} of {self.statistics}" if self.statistics else self.method


#: Titles of sections, and their rows.
Sections = dict[str, list[Row]]

SAMPLERS = {"random": "Random sampling", "rfs": "Repeat factor sampling (RFS)"}
#: The CE detector with the normalised class layer, on which the paper has LogA and LogN; its own row is in table 2.
NORMALISED = "CE, normalised"
#: Losses that train a whole detector, with the class layer that the paper gives each. In 800 iterations averages of a
#: thousand would be 45 % start, so online LogN takes it out.
TRAINED = {
    "EQL": ("linear", "eql"),
    "EQL v2": ("linear", "eql-v2"),
    "Seesaw": ("cosine", "seesaw"),
    "focal": ("linear", "focal"),
    "online LogN": ("cosine", "online-logn:margin=0,bias_corrected=true"),
    "Seesaw, linear": ("linear", "seesaw"),
}
SECOND_STAGES = {"BAGS": "bags", "LOCE": "loce", "LOCE + MFS": "loce-memory", "cRT": "crt", "LWS": "lws"}
#: Corrections of the normalised detector. The paper's LogA keeps the score of the background, as NorCal does. It does
#: not say which counts it takes: of objects here; NorCal's code takes images, and that row stands beside it.
CORRECTIONS = {
    "LogA": "loga:priors=false",
    "LogA, image counts": "loga:priors=false,count_kind=images",
    "LogN": "logn",
    "recommended": "recommended",
}
#: The same and others on the linear detector, each with its published default; these rows are ours.
LINEAR_CORRECTIONS = {
    "tau-norm": "tau-norm:tau=0.7",
    "LogA, linear": "loga:priors=false",
    "LogA with priors, linear": "loga",
    "NorCal, linear": "norcal",
    "FRACAL, linear": "fracal",
    "IIF, linear": "iif",
    "LogN, linear": "logn",
    "recommended, linear": "recommended",
}


def table1(problem: Problem, seed: int) -> Sections:
    """Table 1: every rival, with and without repeat factor sampling.

    Example:
        >>> from logn_research.experiments.specs import SCENES
        >>> [row.label for row in table1(SCENES, 0)["Random sampling"]][:3]
        ['CE', 'CE, normalised', 'EQL']
    """
    framework, sections = FRAMEWORKS.get(problem.model, MAIN_FRAMEWORK), {}
    for sampler, title in SAMPLERS.items():
        plain = ModelSpec(problem, sampler=sampler, seed=seed)
        cosine = replace(plain, classifier="cosine")
        rows = [Row("CE", plain), Row(NORMALISED, cosine)]
        for name, (head, loss) in TRAINED.items():
            loss = problem.eql if name == "EQL" else loss
            rows.append(Row(name, replace(plain, classifier=head, loss=loss)))
        rows += [Row(name, replace(plain, stage=stage)) for name, stage in SECOND_STAGES.items()]
        rows += [Row(name, cosine, method) for name, method in CORRECTIONS.items()]
        rows += [Row(name, plain, method) for name, method in LINEAR_CORRECTIONS.items()]
        sections[title] = [replace(row, paper=_table1_paper(row.label, sampler, framework)) for row in rows]
    return sections


def _table1_paper(label: str, sampler: str, framework: str) -> Mapping[str, Any] | None:
    if label == NORMALISED and sampler == "rfs" and framework == MAIN_FRAMEWORK:
        return COMPONENTS[0].to_dict()
    # LOCE's memory is its sampler, and its images are random; the paper lists that row next to those of RFS.
    row = paper_row(TABLE1, label, "mfs" if label == "LOCE + MFS" and sampler == "random" else sampler, framework)
    return row.to_dict() if row else None


#: Classifier and sampler of the ablations. The last is the paper's: a normalised classifier under RFS.
ABLATION_DETECTORS = {
    "Linear classifier, random sampling": ("linear", "random"),
    "Linear classifier, RFS": ("linear", "rfs"),
    "Normalised classifier, random sampling": ("cosine", "random"),
    "Normalised classifier, RFS (as in the paper)": ("cosine", "rfs"),
}
WHOLE = "mean, std and margin: LogN"
PARTS = {
    "none": "none",
    "mean": "logn:use_std=false,margin=0",
    "std": "logn:strength=0,margin=0",
    "margin": "logn:strength=0,use_std=false,margin=min",
    "mean and std": "logn:margin=0",
    "mean and margin": "logn:use_std=false",
    "std and margin": "logn:strength=0,margin=min",
    WHOLE: "logn",
    "LogN, squared std": "logn:std_power=2",
}
MARGIN_ROWS = {"none": "none"} | {
    margin: f"logn:margin={margin}" for margin in ("-4", "-12", "background", "max", "mean", "min", "0")
}


def components(problem: Problem, seed: int) -> Sections:
    """Table 2: mean, standard deviation and margin alone and together, and the variants of the paper's appendix."""
    sections = _ablation(problem, seed, PARTS, COMPONENTS)
    for rows in sections.values():
        rows.append(Row("LogN, positives only", rows[0].model, "logn", POSITIVES))
        rows.append(Row("LogN, recognised positives only", rows[0].model, "logn", RECOGNISED))
    return sections


def margins(problem: Problem, seed: int) -> Sections:
    """Table 3: the margin of the foreground against the background; the baseline stands in the paper's table 2."""
    return _ablation(problem, seed, MARGIN_ROWS, (COMPONENTS[0], *MARGINS))


def _ablation(problem: Problem, seed: int, methods: Mapping[str, str], paper: Any) -> Sections:
    sections: Sections = {}
    for title, (head, sampler) in ABLATION_DETECTORS.items():
        model = ModelSpec(problem, head, sampler, seed=seed)
        sections[title] = [Row(label, model, method) for label, method in methods.items()]
        if (head, sampler) == ("cosine", "rfs") and problem.model in ("small", "mask-rcnn-r101"):
            known = {row.method: row.to_dict() for row in paper}
            sections[title] = [replace(row, paper=known.get(row.label)) for row in sections[title]]
    return sections


def online(problem: Problem, seed: int) -> Sections:
    """The paper's figure on online LogN: the normalised class layer for all of them."""
    sections: Sections = {}
    for sampler, title in (("random", "Random sampling"), ("rfs", "Repeat factor sampling (as in the paper)")):
        plain = ModelSpec(problem, "cosine", sampler, seed=seed)
        margin_0 = replace(plain, loss=TRAINED["online LogN"][1])
        sections[title] = [
            Row("CE", plain),
            Row("online LogN", margin_0),
            Row("online LogN, margin min", replace(plain, loss=margin_0.loss.replace("margin=0", "margin=min"))),
            Row("LogN", plain, "logn"),
            Row("LogN, margin 0", plain, "logn:margin=0"),
        ]
    return sections


@dataclass(frozen=True)
class Table:
    """A table of the bench.

    Args:
        help: What it is, in a line.
        sections: From the problem and a seed to the rows.
        paper: All rows of the paper's table.
        paper_title: What that table is.
        errors: Whether kinds of error are measured.
    """

    help: str
    sections: Callable[[Problem, int], Sections]
    paper: tuple[Any, ...] = ()
    paper_title: str = ""
    errors: bool = False

    def paper_rows(self) -> list[dict[str, Any]]:
        """The paper's rows as plain values."""
        return [row.to_dict() for row in self.paper]


TABLES = {
    "table1": Table(
        "Every rival, with and without repeat factor sampling (the paper's table 1).",
        table1,
        TABLE1,
        "Table 1 of the paper",
    ),
    "components": Table(
        "Mean, standard deviation and margin of LogN, alone and together (the paper's table 2).",
        components,
        COMPONENTS,
        "Table 2 of the paper, and the squared std of its appendix (Mask-R101, RFS, normalised classifier)",
        errors=True,
    ),
    "margins": Table(
        "The margin of the foreground against the background (the paper's table 3).",
        margins,
        (COMPONENTS[0], *MARGINS),
        "Table 3 of the paper, with the baseline of its table 2 (Mask-R101, RFS, normalised classifier)",
    ),
    "online": Table("LogN during training or after it (the paper's figure on online LogN).", online),
}
