"""Running `logn` inside the test process, with small files of logits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from logn.cli.main import execute


@pytest.fixture
def run(capsys):
    """Run `logn` with these arguments; gives code, out, err, and the parsed JSON when it was asked for."""

    def call(*arguments):
        capsys.readouterr()
        code = execute([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        parsed = json.loads(streams.out) if "--json" in arguments else None
        return SimpleNamespace(code=code, out=streams.out, err=streams.err, json=parsed)

    return call


@pytest.fixture
def refused(run):
    """Run `logn`, expect code 2 and one sentence; gives the sentence, the same with and without --json."""

    def call(*arguments):
        plain = run(*arguments)
        assert plain.code == 2
        assert plain.out == ""
        assert plain.err.count("\n") == 1
        assert plain.err.startswith("Error: ")
        as_json = run(*arguments, "--json")
        assert as_json.code == 2
        assert f"Error: {as_json.json['error']}\n" == plain.err
        return as_json.json["error"]

    return call


@pytest.fixture
def logits(tmp_path):
    """Logits of three classes and a background, in three shards; gives the rows."""
    random = np.random.default_rng(5)
    rows = (random.standard_normal((300, 4)) * [1.5, 1.0, 0.5, 2.0] + [0.0, -2.0, -4.0, 6.0]).astype(np.float32)
    (tmp_path / "shards").mkdir()
    for index, part in enumerate(np.split(rows, [120, 200])):
        np.save(tmp_path / "shards" / f"{index}.npy", part)
    return rows
