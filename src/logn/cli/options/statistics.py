"""The options that the verbs share which write statistics: `logn collect`, of files and of models, and `logn merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.options.choices import Background, Nonfinite

StatisticsFileOption = Annotated[Path, typer.Option("--output", "-o", help="The statistics file to write.")]
BackgroundOption = Annotated[Background, typer.Option(help="Place of the background column.")]
ClassNamesOption = Annotated[Path | None, typer.Option(help="Text file (a name per line) or JSON list.")]
PopulationOption = Annotated[str | None, typer.Option(help="Which samples these are, e.g. 'test proposals'.")]
SampleRowsOption = Annotated[int | None, typer.Option(help="Rows to keep for balanced margins; default 4096.")]
NonfiniteOption = Annotated[Nonfinite, typer.Option(help="NaN and infinity: refuse or skip.")]
