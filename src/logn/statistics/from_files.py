"""Statistics of logits that other programs dumped to files, of any size, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logn.data.logit_files import DEFAULT_BATCH_ROWS, StoredArray, read_blocks
from logn.errors import InputError
from logn.statistics.moments import ClassMoments


def collect_shards(
    shards: Sequence[StoredArray],
    moments: ClassMoments,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    progress: Callable[[int], object] = lambda rows: None,
) -> ClassMoments:
    """Add the rows of all shards to statistics, block by block.

    Args:
        shards: What `logn.data.logit_files.open_shards` gave.
        moments: Statistics of nothing yet, which are returned.
        batch_rows: Rows of a batch where the shards have two axes.
        progress: Called with the number of rows that have been done.

    Example:
        >>> import tempfile, numpy as np
        >>> from pathlib import Path
        >>> from logn.data.logit_files import open_shards
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> collect_shards(open_shards([path]), ClassMoments(2)).mean.tolist()
        [1.0, 1.0]
    """
    for shard in shards:
        if len(shard.shape) > 3:  # maps of logits, whose classes may be on any axis: the second is usual
            raise InputError(
                f"`{shard.path}` has shape {shard.shape}, not (rows, classes) or (images, rows, classes). If its "
                f"second axis has the classes, save numpy.moveaxis(logits, 1, -1).reshape(-1, {shard.shape[1]}); if "
                f"its last, logits.reshape(-1, {shard.shape[-1]})."
            )
    for shard in shards:
        for block in read_blocks(shard, batch_rows=batch_rows):
            # A part of its own, so that the sample does not depend on what was read before.
            part = moments.new_part()
            for batch in block.read_batches():
                try:
                    part.update(batch)
                except InputError as error:
                    raise InputError(f"In `{shard.path}`, rows {block.start} to {block.stop}: {error}") from error
            moments.merge(part)
            progress(block.stop - block.start)
    return moments
