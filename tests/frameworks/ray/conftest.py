"""A real local Ray, and pictures for it. `make test-ray` runs these tests; without the package they are skipped."""

import os

import numpy as np
import pytest


@pytest.fixture(scope="session")
def cluster():
    """A local Ray that gives out four cores, whatever the machine has: two workers, and readers beside them."""
    import ray

    # A busy machine is no error, and workers are not to wait behind everything else that runs on it.
    patience = ("gcs_rpc_server_connect_timeout_s", "gcs_server_request_timeout_seconds", "raylet_start_wait_time_s")
    for name, value in {**dict.fromkeys(patience, 600), "worker_niceness": 0}.items():
        os.environ[f"RAY_{name}"] = str(value)
    local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(num_cpus=4, configure_logging=False, log_to_driver=False, **local)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Thirty little pictures in a folder, of one size."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for number in range(30):
        pixels = generator.integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder
