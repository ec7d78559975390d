"""Make the pictures of the report from a comparison: `python docs/make_pictures.py runs/demo/comparison`.

It needs selenium, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from logn.report.page import write_report

IMAGES = Path(__file__).parent / "images"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
# Name, width of the window, light or dark, from which element to which.
SHOTS = (
    ("report-top", 1240, "light", "header", "nav"),
    ("report-gallery", 1240, "light", "#gallery", "#gallery .gallery"),
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


def take_screenshots(folder: Path, method: str) -> None:
    """Parts of the page, as a browser shows them."""
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
    arguments = parser.parse_args()
    take_screenshots(arguments.comparison, arguments.method)


if __name__ == "__main__":
    main()
