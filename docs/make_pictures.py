"""Make the pictures of the documentation from a run: `python docs/make_pictures.py runs/demo/comparison`.

The picture of the problem needs matplotlib; the screenshots need selenium, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from logn_research.figures.draw import BLUE, GREY, PAGE, paper_style
from PIL import Image

from logn.evaluate.comparison.comparison import Comparison
from logn.report.page import write_report
from logn.report.sections import follows_count, logit_statistics
from logn.report.statistics_plot import GROUP_STYLES

IMAGES = Path(__file__).parent / "images"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
# Name, width of the window, light or dark, from which element to which.
SHOTS = (
    ("report-top", 1240, "light", "header", "nav"),
    ("report-statistics", 1240, "light", "#statistics", "#statistics"),
    ("report-errors", 1240, "dark", "#errors", "#errors"),
    ("report-gallery", 1240, "light", "#gallery", "#gallery .gallery"),
    ("report-phone", 380, "dark", "header", "nav"),
)
MOST_BYTES = 200_000


def save_small(picture: Image.Image, path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Write a PNG with as many colours as fit into the bytes; a large picture is made smaller first."""
    for scale, colours in ((1, 256), (1, 64), (0.75, 128), (0.6, 128), (0.5, 64)):
        size = (round(picture.width * scale), round(picture.height * scale))
        small = (
            picture.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(colours, dither=Image.Dither.NONE)
        )
        buffer = io.BytesIO()
        small.save(buffer, "PNG", optimize=True)
        if buffer.tell() <= most_bytes:
            break
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {size[0]} x {size[1]}, {buffer.tell() / 1000:.0f} kB")


def draw_problem(folder: Path, method: str) -> None:
    """The picture of the README: the bias in the logits, and what removing it does to each group."""
    comparison = Comparison.load(folder)
    with paper_style() as make:
        figure = make(PAGE, 2.75)
        left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        _draw_means(left, comparison, logit_statistics(comparison, comparison[method]))
        _draw_groups(right, comparison, method)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=200)
    buffer.seek(0)
    save_small(Image.open(buffer), IMAGES / "problem.png", 120_000)


def _draw_means(axes: Any, comparison: Comparison, statistics: Mapping[str, Any]) -> None:
    groups = np.array([entry.group or "f" for entry in comparison.classes])
    images, before, after = (statistics[name] for name in ("images", "mean_before", "mean_after"))
    for group, (colour, marker) in GROUP_STYLES.items():
        chosen = groups == group
        axes.scatter(images[chosen], before[chosen], s=11, marker=marker, c="none", edgecolors=GREY, lw=0.7)
        axes.scatter(images[chosen], after[chosen], s=7, marker=marker, c=colour, lw=0)
    axes.set_xscale("log")
    axes.set_xlabel("training images of the class")
    axes.set_ylabel("mean logit of the class")
    axes.set_title("Mean logit of each class over all proposals", loc="left")
    axes.grid(axis="y")
    followed = f"before: follows the training images\n(rank correlation {follows_count(before, images):+.2f})"
    axes.text(0.98, 0.06, followed, transform=axes.transAxes, ha="right", va="bottom", color="#555A61")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.1 * (high - low))
    is_flat = np.ptp(after) < 0.01 * np.ptp(before)
    words = "the same for all classes" if is_flat else f"{follows_count(after, images):+.2f}"
    axes.text(images.min(), float(np.nanmean(after)) + 0.06 * (high - low), f"after: {words}", color=BLUE)


def _draw_groups(axes: Any, comparison: Comparison, method: str) -> None:
    names = {"APr": "rare", "APc": "common", "APf": "frequent", "AP": "all"}
    place = np.arange(len(names))
    for side, (row, colour, label) in enumerate(
        ((comparison.baseline, GREY, "before"), (comparison[method], BLUE, f"after {method}"))
    ):
        values = 100 * np.array([row[name] for name in names])
        bars = axes.bar(place + (side - 0.5) * 0.38, values, 0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=6.5, padding=1.5)
    axes.set_xticks(place, names.values())
    axes.set_ylabel("AP")
    axes.set_title("Average precision by class frequency", loc="left")
    axes.legend(loc="upper left")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.12)


def take_screenshots(folder: Path, method: str) -> None:
    """The page at the widths of a desk and of a phone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        for flag in [*FLAGS.split(), f"--user-data-dir={temporary}/profile"]:
            options.add_argument(flag)
        page = Path(temporary) / "report.html"
        write_report(folder, page, method=method)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
        try:
            for name, width, scheme, first, last in SHOTS:
                save_small(_screenshot(browser, page.as_uri(), width, scheme, (first, last)), IMAGES / f"{name}.png")
        finally:
            browser.quit()


def _screenshot(browser: Any, address: str, width: int, scheme: str, part: tuple[str, str]) -> Image.Image:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(address)
    script = """
        const [first, last] = arguments[0].map((name) => document.querySelector(name).getBoundingClientRect());
        return [first.top + window.scrollY, last.bottom + window.scrollY];
    """
    top, bottom = browser.execute_script(script, part)
    top = max(top - 14, 0)
    clip = {"x": 0, "y": top, "width": width, "height": bottom + 14 - top, "scale": 1}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    return Image.open(io.BytesIO(base64.b64decode(shot["data"])))


def main() -> None:
    """Read the run's folder from the command line and make every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path, help="folder that `logn compare -o` wrote, as `logn demo` has it")
    parser.add_argument("--method", default="recommended", help="the method to look at")
    parser.add_argument("--only", choices=["problem", "screenshots"], help="one kind of picture only")
    arguments = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for name, make in (("problem", draw_problem), ("screenshots", take_screenshots)):
        if arguments.only in (None, name):
            make(arguments.comparison, arguments.method)


if __name__ == "__main__":
    main()
