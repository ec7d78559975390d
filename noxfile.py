"""Environments beside `make test`, each made by its session: `make test-core`, or `.venv/bin/nox -s core`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
# Warnings fail with the pinned packages only; other versions may warn of code of their own.
OTHER_VERSIONS = ("-W", "default")


@nox.session
def core(session: nox.Session) -> None:
    """What needs NumPy only, in an environment that has nothing else: no torch, no images, no ONNX."""
    session.install("-e", ".", "pytest", "hypothesis")
    session.run("pytest", "@tests/core.txt")
    session.run("python", "tests/release/walk_readme.py")


@nox.session
def oldest(session: nox.Session) -> None:
    """The oldest version of each dependency that pyproject.toml allows; of the frameworks, torchvision alone."""
    session.install("--resolution", "lowest-direct", "-e", ".[all]")
    session.install("hypothesis", "lvis", "numpy<2", "pycocotools", "pytest", "pytest-xdist", "scikit-learn", "tidecv")
    session.install("--no-deps", "-e", "research")
    frameworks = Path("tests/models/frameworks").glob("test_*.py")
    ignored = ["tests/docs", *(str(path) for path in frameworks if "torchvision" not in path.name)]
    session.run("pytest", "-n", "auto", *OTHER_VERSIONS, "tests", "src", *(f"--ignore={path}" for path in ignored))


@nox.session(venv_backend="venv")
def mmdet(session: nox.Session) -> None:
    """Real MMDetection models. Its operators take half an hour to compile; MMCV_WHEEL names a wheel built before."""
    session.install("torch==2.13.0")
    if wheel := os.environ.get("MMCV_WHEEL"):
        session.install(wheel)
    else:
        session.install("setuptools", "wheel", "ninja", "psutil")
        compiled = ("--no-build-isolation", "--no-binary", "onedl-mmcv", "onedl-mmcv==2.3.6")
        session.install(*compiled, env={"MMCV_WITH_OPS": "1"})
    session.install("onedl-mmengine==0.10.12", "onedl-mmdetection==3.5.1", "lvis==0.5.3", "pytest", "pytest-xdist")
    session.install("-e", ".[evaluate,report]")
    session.install("--no-deps", "-e", "research")
    # A file at a time, since the rows of a page go on from each other.
    side_by_side = ("-n", "2", "--dist", "loadfile", "--durations=15")
    session.run("pytest", *OTHER_VERSIONS, *side_by_side, "tests/models/frameworks/mmdet", "research/tests/mmdet")


@nox.session
def engines(session: nox.Session) -> None:
    """Inference engines (OpenVINO, LiteRT, onnxruntime) and the recipes for Lightning and transformers' Trainer."""
    session.install("torch==2.14.1", "torchvision==0.29.2", "openvino==2026.4.1", "nncf==3.4.0")
    session.install("litert-torch==0.10.0", "ai-edge-litert==2.3.0", "ai-edge-quantizer==0.10.0", "onnx==1.23.2")
    session.install("onnxruntime==1.31.1", "ultralytics==8.4.190", "lightning==2.6.6", "transformers==5.22.2")
    session.install("accelerate==1.15.0", "pytest", "-e", ".[torchvision,onnx]")
    session.run("pytest", *OTHER_VERSIONS, "tests/engines")


@nox.session
def ray(session: nox.Session) -> None:
    """Collecting over a real local Ray."""
    session.install("ray[data]==2.60.0", "-e", ".[torchvision,ray]", "pytest", "hypothesis")
    session.run("pytest", *OTHER_VERSIONS, "tests/test_ray.py")


@nox.session
def dist(session: nox.Session) -> None:
    """Build sdist and wheel, check what PyPI checks, install each into an empty environment, walk the README there."""
    session.install("build", "twine", "virtualenv")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist", ".", silent=True)
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    for pattern in ("*.whl", "*.tar.gz"):
        (built,) = Path("dist").glob(f"logn-{pattern}")
        place = Path(session.create_tmp()) / built.name
        session.run("virtualenv", "--clear", "-q", str(place))
        python = str(place / "bin" / "python")
        session.run(python, "-m", "pip", "install", "-q", str(built.resolve()), external=True)
        session.run(python, "-I", str(Path("tests/release/walk_readme.py").resolve()), external=True)
