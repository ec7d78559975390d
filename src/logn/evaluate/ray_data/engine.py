"""What collecting and predicting over Ray share: the package, shipping to workers, and running each block once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from logn.errors import InputError, MissingExtraError
from logn.evaluate.ray_data.images import digest_of_names


def import_ray() -> ModuleType:
    """Ray with its Data library, or an error that says what to install."""
    try:
        import ray.data

        import ray
    except ImportError as error:
        raise MissingExtraError("ray", extra="ray") from error
    module: ModuleType = ray
    return module


def connect() -> ModuleType:
    """Ray, started: the cluster that this process knows (`RAY_ADDRESS`), or one of this machine."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(configure_logging=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False  # there is `progress`
    return ray


def check_shippable(make: Any, name: str) -> None:
    """Refuse what is no function, or what Ray cannot send to its workers, before any of them starts."""
    if hasattr(make, "state_dict") or hasattr(make, "propose") or not callable(make):
        raise InputError(
            f"Expected `{name}` to be a function that makes the model on each worker, but got {type(make).__name__}."
        )
    try:
        import_ray().cloudpickle.dumps(make)
    except Exception as error:  # whatever the objects that it refers to raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"Expected `{name}` to be a function that Ray can send to its workers, but it refers to something that "
            f"cannot be sent ({reason}); load the model inside the function."
        ) from error


def run_blocks(
    dataset: Any, worker: type, settings: Mapping[str, Any], *, workers: int | None, gpus: float
) -> Iterator[dict[str, Any]]:
    """What the workers say of each block, as the blocks are done; each block once.

    Ray starts a worker that died again and repeats its task. It hands on the result of one attempt only; the keys make
    sure of that, since all attempts at a block share one. A key that comes twice with other images is refused: then the
    keys are wrong, and to leave out the second would lose its images.
    """
    ray = connect()
    if not isinstance(dataset, ray.data.Dataset):
        raise InputError(f"Expected `dataset` to be a ray.data.Dataset, but got {type(dataset).__name__}.")
    said = dataset.map_batches(
        worker,
        fn_constructor_kwargs={"settings": dict(settings)},
        batch_size=None,  # a whole block at a time
        batch_format="numpy",
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(
            size=_pool_size(ray, workers, gpus),
            max_concurrent_calls_per_actor=1,
            enable_true_multi_threading=True,  # in the thread of the task, by which a block gets its key
        ),
        num_gpus=gpus or None,
    )
    seen: dict[str, str] = {}
    for row in said.iter_rows():
        if row["error"]:
            raise InputError(str(row["error"]))
        if (before := seen.get(row["key"])) is None:
            seen[row["key"]] = row["digest"]
            yield row
        elif not before or before != row["digest"]:
            raise RuntimeError(f"Ray gave two blocks of different images the key {row['key']}.")


def _pool_size(ray: ModuleType, workers: int | None, gpus: float) -> int:
    """One worker per GPU, or per core but one, which reads."""
    if workers is not None:
        if workers < 1:
            raise InputError(f"Expected `workers` to be at least 1, but got {workers}.")
        return workers
    there = ray.cluster_resources()
    return max(1, int(there.get("GPU", 0) / gpus) if gpus else int(there.get("CPU", 1)) - 1)


class BlockWorker:
    """An actor that makes its model once and answers each block with one small row.

    Errors that a user can mend are answered too, since Ray would wrap them into pages of traces.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._model: Any = None
        self._task, self._block = "", 0

    def __call__(self, block: Mapping[str, Any]) -> Any:
        """Answer one block."""
        import pyarrow

        row: dict[str, Any] = {"images": 0, "run": 0, "error": "", "payload": b"", "unreadable": "[]"}
        row |= {"key": self._key(), "digest": digest_of_names(block)}
        try:
            if any(len(column) for column in block.values()):
                row |= self.answer(block)
        except (InputError, MissingExtraError) as error:
            row["error"] = str(error)
        # A table of Arrow, since arrays of bytes in NumPy lose zeros at their end.
        return pyarrow.table({name: [value] for name, value in row.items()})

    def answer(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """What to say of a block: its `images`, how many were `run`, and its `payload` and `unreadable`."""
        raise NotImplementedError

    def model(self, name: str) -> Any:
        """The model, made when the first block comes and brought to the GPU where the worker has one."""
        if self._model is None:
            make: Callable[[], Any] = self.settings[name]
            self._model = make()
            if self.settings["gpus"]:
                from logn.evaluate.detectors.detector import move_to

                move_to(self._model, "cuda")  # the only one that Ray lets this worker see
        return self._model

    def _key(self) -> str:
        """The task and which of its blocks this is; a task that is repeated after a loss keeps its id."""
        import ray

        task = str(ray.get_runtime_context().get_task_id())
        self._block = self._block + 1 if task == self._task else 0
        self._task = task
        return f"{task}/{self._block}"


def unreadable_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The images of a block that were left out, each with the reason."""
    return dict(json.loads(row["unreadable"]))
