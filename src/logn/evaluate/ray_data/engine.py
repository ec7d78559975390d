"""What collecting and predicting over Ray share: the package, shipping to workers, and running each block once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from logn.errors import InputError, MissingExtraError
from logn.evaluate.ray_data.images import digest_of_names

# How often a block whose worker died is tried again before it is taken for the cause.
RETRIES = 5


def import_ray() -> ModuleType:
    """Ray with its Data library, or an error that says what to install."""
    try:
        import ray
        import ray.data
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


def shipped(make: Any, name: str) -> bytes:
    """A function as the bytes that workers get; what is none, or cannot be sent, is refused before any starts."""
    is_model = not isinstance(make, type) and (hasattr(make, "state_dict") or hasattr(make, "propose"))
    if is_model or not callable(make):
        raise InputError(
            f"Expected `{name}` to be a function that makes the model on each worker, but got {type(make).__name__}."
        )
    ray = import_ray()
    try:
        data: bytes = ray.cloudpickle.dumps(make)
    except Exception as error:  # whatever the objects that it refers to raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"Expected `{name}` to be a function that Ray can send to its workers, but it refers to something that "
            f"cannot be sent ({reason}); load the model inside the function."
        ) from error
    return data


def run_blocks(
    dataset: Any, worker: type, settings: Mapping[str, Any], *, workers: int | None, gpus: float
) -> Iterator[dict[str, Any]]:
    """What the workers say of each block, as the blocks are done; each block once.

    Ray starts a worker that died again and repeats its task, up to `RETRIES` times. It hands on the result of one
    attempt only; the keys make sure of that, since all attempts at a block share one.
    """
    ray = connect()
    if not isinstance(dataset, ray.data.Dataset):
        raise InputError(f"Expected `dataset` to be a ray.data.Dataset, but got {type(dataset).__name__}.")
    there = ray.cluster_resources()
    count = pool_size(there, workers, gpus)
    with warnings.catch_warnings():
        # Ray's default is to retry without end, and this the only way to end it; hence the bound in pyproject.toml.
        warnings.simplefilter("ignore", DeprecationWarning)
        said = dataset.map_batches(
            worker,
            fn_constructor_kwargs={"settings": dict(settings)},
            batch_size=None,  # a whole block at a time
            batch_format="numpy",
            zero_copy_batch=True,
            compute=ray.data.ActorPoolStrategy(
                size=count,
                max_concurrent_calls_per_actor=1,
                enable_true_multi_threading=True,  # in the thread of the task, by which a block gets its key
            ),
            num_cpus=cores_each(there.get("CPU", 1), count),
            num_gpus=gpus or None,
            ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
        )
    try:
        yield from each_once(said.iter_rows())
    except ray.exceptions.RayActorError as error:
        raise InputError(
            f"Expected workers to live, but the one of a block died each of {RETRIES + 1} times: out of memory, or in "
            "the model's own code; try a smaller `batch` or fewer `workers`."
        ) from error


def each_once(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of workers, each block once; an error that a worker met is raised.

    Example:
        >>> row = {"error": "", "key": "a/0", "digest": "1f", "images": 3}
        >>> len(list(each_once([row, {**row, "key": "a/1"}, row])))
        2
    """
    seen = set[bytes]()
    for row in rows:
        if row["error"]:
            raise InputError(str(row["error"]))
        block = f"{row['key']} {row['digest']}".encode()
        mark = hashlib.blake2b(block, digest_size=16).digest()  # some bytes a block are all that grows with the data
        if mark not in seen:
            seen.add(mark)
            yield row
        elif not row["digest"]:
            raise RuntimeError(f"Ray gave two blocks the key {row['key']}, and no names tell whether they are one.")


def pool_size(there: Mapping[str, float], workers: int | None, gpus: float) -> int:
    """How many workers: as many as asked for, or one per GPU, or one per core but one, which reads.

    Example:
        >>> pool_size({"CPU": 4.0}, None, 0), pool_size({"CPU": 64.0, "GPU": 8.0}, None, 1), pool_size({}, 3, 0)
        (3, 8, 3)
    """
    if workers is not None:
        if workers < 1:
            raise InputError(f"Expected `workers` to be at least 1, but got {workers}.")
        return workers
    return max(1, int(there.get("GPU", 0) / gpus) if gpus else int(there.get("CPU", 1)) - 1)


def cores_each(cores: float, workers: int) -> float:
    """What a worker books of the cores: one, or so much less that a core is left to read; else nothing ever came.

    Example:
        >>> cores_each(4, 2), cores_each(2, 2), cores_each(1, 1)
        (1.0, 0.5, 0.5)
    """
    return min(1.0, int(1000 * max(cores - 1, cores / 2) / workers) / 1000)


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
            make = self.unpacked(name)
            try:
                self._model = make()
            except (InputError, MissingExtraError):
                raise
            except Exception as error:  # whatever the user's function raises; its traceback is far away
                raise InputError(f"Expected `{name}` to give a model, but on a worker it raised {error!r}.") from error
            if self.settings["gpus"]:
                from logn.evaluate.models.open import move_to

                move_to(self._model, "cuda")  # the only one that Ray lets this worker see
        return self._model

    def unpacked(self, name: str) -> Any:
        """A function of the settings, which came as bytes.

        The bytes are those that the driver of this very run made of the caller's function, sent by Ray to its own
        actor: what Ray does with any function, done here so that a failed import is one sentence. Nothing that was
        stored or came from elsewhere is opened in this way.
        """
        import ray

        try:
            return ray.cloudpickle.loads(self.settings[name])
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"Expected workers to import what `{name}` refers to, but they cannot ({error}); install it there, or "
                'send its folder: ray.init(runtime_env={"working_dir": "."}).'
            ) from error

    def _key(self) -> str:
        """The task and which of its blocks this is; a task that is repeated after a loss keeps its id."""
        import ray

        task = str(ray.get_runtime_context().get_task_id())
        self._block = self._block + 1 if task == self._task else 0
        self._task = task
        return f"{task}/{self._block}"
