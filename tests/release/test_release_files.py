"""What a release rests on: versions that agree, workflows that call what exists, distributions that hold everything."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import logn

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="the repository is not around the tests")


def read_yaml(path):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project(folder=ROOT):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def jobs(path):
    return read_yaml(path)["jobs"]


def test_the_version_is_the_same_everywhere():
    assert project(ROOT / "research")["version"] == logn.__version__
    assert f"\nversion: {logn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_matrix_has_every_python_that_the_package_names():
    named = {word.rpartition(" ")[2] for word in project()["classifiers"] if ":: Python :: 3." in word}
    matrix = jobs(ROOT / ".github" / "workflows" / "tests.yml")["core"]["strategy"]["matrix"]
    assert {*matrix["python"]} == named
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert project()["requires-python"] == f">={min(matrix['python'])}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_exists(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", noxfile, flags=re.M))
    for name, job in jobs(path).items():
        assert {*([job["needs"]] if "needs" in job else [])} <= {*jobs(path)}, name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            for file in re.findall(r"(?<!\S)@?([\w.-]+(?:/[\w.-]+)+)(?!\S)", step.get("run", "")):
                assert (ROOT / file).exists(), file
            for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                assert target in targets or target.removeprefix("test-") in {*sessions, ""}, target
        matrix = job.get("strategy", {}).get("matrix", {})
        assert {*matrix.get("session", [])} <= sessions, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_nothing_may_write_unless_it_says_so(path):
    assert read_yaml(path)["permissions"] == {"contents": "read"}
    for job in jobs(path).values():
        assert job.get("permissions", {"id-token": "write"}) == {"id-token": "write"}
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", step.get("uses", "a@v1")), step


def test_publishing_keeps_no_token():
    publish = jobs(ROOT / ".github" / "workflows" / "release.yml")["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "password" not in str(publish)


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name)
def test_issue_forms_ask_for_something(path):
    form = read_yaml(path)
    assert form["name"]
    assert form["description"]
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_hooks_call_what_exists():
    (local,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in local["hooks"]:
        program, *words = hook["entry"].removeprefix(".venv/bin/").split()
        assert program == "python" or f"$(BIN)/{program}" in makefile
        assert all((ROOT / word).exists() for word in words if "/" in word)


def test_what_the_core_runs_exists():
    listed = (ROOT / "tests" / "core.txt").read_text(encoding="utf-8").split()
    assert [path for path in listed if not (ROOT / path).exists()] == []


def test_the_source_distribution_has_every_file_of_the_repository():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what belongs to the repository is not known")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    included = {*hatch["build"]["targets"]["sdist"]["include"]}
    always = {".gitignore", "pyproject.toml"}
    assert {path.partition("/")[0] for path in listed.splitlines()} - always == included
