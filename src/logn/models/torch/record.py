"""record: fill ClassMoments by forward hooks while a model runs, on any device and over all processes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from logn.errors import InputError, warn
from logn.models.hooks import ForwardPasses, evaluation_mode, give_own_slots, never_compiled, recompile
from logn.models.layer import (
    LogitLayer,
    count_columns,
    find_modules,
    refuse_single_logit,
    unwrap,
)
from logn.models.layer import fingerprint as fingerprint_of
from logn.models.locate import layer_of
from logn.models.output_check import OutputCheck
from logn.models.torch.attach import has_map
from logn.statistics.doubts import unused_checks
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.row_sample import default_sample_rows

Batch = TypeVar("Batch")
# Batches that may be on the way from a GPU; each holds its memory until it has arrived.
BATCHES_ON_THE_WAY = 8


@contextlib.contextmanager
def record(
    model: nn.Module,
    layer: LogitLayer | str,
    *,
    sample_rows: int | None = None,
    mean_probability: bool = True,
    nonfinite: Nonfinite = "error",
    class_names: Sequence[str] | None = None,
    fingerprint: bool = True,
    across_processes: bool = True,
    check_output: bool = True,
) -> Iterator[Any]:
    """Record the class logits of all forward passes inside the `with` block.

    Records the outputs of the modules of `layer` themselves, before any attached correction. The model does not change,
    and the hooks are removed when the block ends, also after an error. Run the model in `eval()` mode and, to save
    memory, under `torch.inference_mode()`; in training mode a detector's head sees other samples, so LogN warns.

    The first forward pass of a classifier compares the recorded logits with the output of the model. A softmax or
    sigmoid of them is noted in the statistics. Raises InputError if the output has other inputs, a temperature or
    another activation than `layer`, or if a forward hook of yours changes the output of the layer. Outputs without
    logits, such as the boxes of a detector, are not compared.

    Under torch.distributed every process ends with the exact statistics of all processes, so all of them must reach the
    end of the block.

    Args:
        model: A torch module.
        layer: Where the logits are (`logn.locate_logits`), or the path of their module.
        sample_rows: How many rows to keep as a sample, for matching thresholds; by default 4096, or as many
            as fit into 4 MiB.
        mean_probability: Whether to keep the mean probability of each class, which `logn.recommend` needs.
        nonfinite: "error" refuses NaN and infinity and names the class, "skip" leaves them out and counts them.
        class_names: Name of each column, the background included, for the record.
        fingerprint: Whether to hash the weights, so that statistics of different models never merge.
        across_processes: Whether to merge over torch.distributed when the block ends.
        check_output: Whether to compare the logits with what the model returns.

    Yields:
        ClassMoments: filled as the model runs, some batches behind it on a GPU, which never waits for them; for a
            layer with `stages=True` a tuple with one per stage.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3)).eval()
        >>> with record(model, LogitLayer("0")) as moments, torch.inference_mode():
        ...     _ = model(torch.rand(10, 4))
        >>> moments.count.tolist()
        [10.0, 10.0, 10.0]
    """
    layer = layer_of(model, layer)
    columns = count_columns(model, layer)
    refuse_single_logit(layer, columns)
    modules = find_modules(model, layer)
    for stage, module in zip(layer.stage_of, modules, strict=True):
        if stage != layer.stage_of[modules.index(module)]:
            raise InputError(f"Some stages of `{layer.name}` are the same module: name each module in one stage.")
    if unwrap(model).training:
        warn(
            f"The model is in training mode, so the logits of `{layer.name}` are not those of inference; call .eval()."
        )
    head = layer.head(columns, class_names, fingerprint_of(model) if fingerprint else None)
    rows = default_sample_rows(columns) if sample_rows is None else sample_rows
    recorded = tuple(
        ClassMoments(
            replace(head, layer=name), nonfinite=nonfinite, sample_rows=rows, mean_probability=mean_probability
        )
        for name in layer.stage_names
    )
    queues: list[DeviceRows] = []
    with contextlib.ExitStack() as hooks:
        hooks.callback(recompile)
        hooks.enter_context(give_own_slots(model, layer))
        passes = ForwardPasses(unwrap(model)) if layer.final_only == "call" else None
        if passes is not None:
            hooks.callback(passes.remove)
        modules = find_modules(model, layer)
        # A module under two names is recorded once.
        for module in dict.fromkeys(modules):
            index = modules.index(module)
            queues.append(DeviceRows(recorded[layer.stage_of[index]].update))
            hooks.enter_context(_recording(layer, index, module, queues[-1], passes))
        if check_output:
            hooks.enter_context(OutputCheck(model, layer, on_activation=partial(_note_activation, recorded)))
        recompile()
        yield recorded if layer.stages else recorded[0]
        for queue in queues:
            queue.finish()
    if across_processes:
        merge_across_processes(recorded)
    _warn_of_doubts(layer, recorded)


def collect_moments(
    model: nn.Module, layer: LogitLayer, batches: Iterable[Batch], run: Callable[[Batch], object], **options: Any
) -> tuple[ClassMoments, ...]:
    """Run a model over batches once, in evaluation mode and without gradients, and gather what its class layer gives.

    `logn collect`, `logn correct` and `logn.calibrate` all gather statistics here, so that the same model and batches
    have the same statistics, to the last bit, whichever is asked. Rows are what comes out of the layer: of a dense head
    all anchors, of a two-stage head the proposals at test time.

    Args:
        model: A torch module; every part of it is in the mode it was in afterwards.
        layer: Where the logits are.
        batches: What `run` takes.
        run: Runs the model on a batch.
        options: Further arguments of `record`.

    Returns:
        The statistics of each stage; of a layer without stages, one.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        >>> (moments,) = collect_moments(model, LogitLayer("0"), [torch.rand(10, 4), torch.rand(2, 4)], model)
        >>> moments.count.tolist()
        [12.0, 12.0, 12.0]
    """
    with evaluation_mode(model), record(model, layer, **options) as recorded, torch.inference_mode():
        for batch in batches:
            run(batch)
    return recorded if layer.stages else (recorded,)


def merge_across_processes(moments: Sequence[ClassMoments]) -> None:
    """Give every process of torch.distributed, in place, the statistics of all; each process must call it.

    All merge in the order of their ranks, so that the results are the same to the last bit. A process may have seen
    nothing. Statistics of different things (another class list, other weights) are refused on every process.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for mine in moments:
        payloads: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(payloads, mine.to_bytes())
        parts = [ClassMoments.from_bytes(payload) for payload in payloads]
        # Processes that saw no image know no activation; they get that of the others.
        activations = {part.head.activation for part in parts} - {None}
        if len(activations) == 1:
            (activation,) = activations
            _note_activation(parts, str(activation))
        vars(mine).update(vars(ClassMoments.merge_all(parts)))  # the user holds this object


class DeviceRows:
    """Gives batches to `use` in their order: those of a GPU when they have arrived, all others at once.

    The model runs ahead of the program: asking for the numbers of a batch at once would stop the program until the GPU
    has come that far. So a copy is ordered, and used when it has arrived, some batches later.

    Args:
        use: Called with each batch, on the processor.

    Example:
        >>> seen = []
        >>> DeviceRows(seen.append).add([1.0, 2.0])
        >>> seen
        [[1.0, 2.0]]
    """

    def __init__(self, use: Callable[[Any], object]) -> None:
        self._use = use
        self._waiting: deque[tuple[Any, Any]] = deque()

    def add(self, rows: Any) -> None:
        """Take a batch; what is not used yet is used when `finish` is called, at the latest."""
        if not getattr(rows, "is_cuda", False):
            self.finish()
            self._use(rows)
            return
        self._waiting.append(_ordered_copy(rows))
        while len(self._waiting) > BATCHES_ON_THE_WAY or (self._waiting and self._waiting[0][1].query()):
            self._use_first()

    def finish(self) -> None:
        """Use what is still on the way."""
        while self._waiting:
            self._use_first()

    def _use_first(self) -> None:
        rows, arrival = self._waiting.popleft()
        arrival.synchronize()
        self._use(rows)


def _ordered_copy(rows: Any) -> tuple[Any, Any]:
    """Memory of the processor that will hold the rows, and the event of CUDA that shows when it does."""
    with torch.cuda.device(rows.device):
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host.copy_(rows.detach(), non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
    return host, arrival


@contextlib.contextmanager
def _recording(
    layer: LogitLayer, index: int, module: nn.Module, queue: DeviceRows, passes: ForwardPasses | None
) -> Iterator[None]:
    """Give what a module puts out to `queue`; refuse forward hooks that change what the model goes on with."""
    lock, calls = threading.Lock(), threading.local()  # replicas of a data-parallel model run in threads

    def update(rows: Any) -> None:
        with lock:
            queue.add(rows)

    def take(module: nn.Module, inputs: Any, output: Any) -> None:
        rows = layer.rows(output[-1] if layer.final_only == "slice" else output, index)
        if passes is None:
            update(rows)
        else:
            passes.at_the_end(index, lambda: update(rows))
        if not hasattr(calls, "first"):
            calls.first = output.detach().clone()  # a hook may work in place

    def compare(module: nn.Module, inputs: Any, output: Any) -> None:
        first, calls.first = calls.first, None  # one call is enough to know
        if first is not None and (first.shape != output.shape or not ((first == output) | first.isnan()).all()):
            raise InputError(
                f"A forward hook on `{layer.paths[index]}` changes its output, so the model continues with other "
                "logits than those recorded: remove the hook, or do its work in a module behind the layer and name "
                "that."
            )

    # First of all hooks, so that a map attached to the layer is not recorded.
    handles = [module.register_forward_hook(never_compiled(take), prepend=True)]
    if not has_map(module):
        handles.append(module.register_forward_hook(never_compiled(compare)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note_activation(recorded: Sequence[ClassMoments], activation: str) -> None:
    """Put the activation that the forward pass showed into the statistics."""
    for moments in recorded:
        moments.head = replace(moments.head, activation=activation)


def _warn_of_doubts(layer: LogitLayer, recorded: Sequence[ClassMoments]) -> None:
    for sentence in dict.fromkeys(sentence for moments in recorded for sentence in unused_checks(moments)):
        warn(sentence)
    if not all(moments.count.any() or moments.skipped.any() for moments in recorded):
        warn(f"No logits passed through `{layer.name}` while recording: run the model in the block, or name its layer.")
