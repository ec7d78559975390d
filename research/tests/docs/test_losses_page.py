"""The page on losses runs, and knows every loss."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def test_the_example_runs(blocks):
    (code,) = blocks("python")
    names: dict = {}
    exec(code, names)  # noqa: S102 - our own page
    assert names["scores"].shape == (8, 4)


@pytest.mark.usefixtures("one_thread")
def test_the_commands_train(workplace, blocks, run_logn):
    commands, _ = blocks("sh")  # the other is for LVIS
    # One iteration each instead of a thousand, or of six epochs.
    lines = commands.replace(" --epochs 6", "").splitlines()
    run_logn("\n".join(f"{line} --iterations 1" for line in lines))
    for name in ("seesaw", "eql", "bags", "loce"):
        assert (workplace / "runs" / name / "checkpoint.safetensors").exists()


def test_the_table_is_that_of_the_code():
    import logn_research.losses

    from logn.classes.counts import ClassCounts

    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| F( \+ \d)? ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    assert tuple(name for name, _, _ in rows) == logn_research.losses.LOSS_NAMES
    for name, kind, more in rows:
        loss = logn_research.losses.make_loss(name, ClassCounts([50, 5, 1], num_images=60))
        assert type(loss).__name__ == kind
        assert loss.layout.columns == 3 + int(more.removeprefix(" + ") or 0)


def test_the_options_and_defaults_on_the_page_are_those_of_the_code():
    import inspect

    import logn_research.losses
    from logn_research.losses.loss_factory import parse_loss

    from logn.classes.counts import ClassCounts

    section = PAGE.read_text(encoding="utf-8").split("Options follow a colon")[1].split("##")[0]
    specs = [spec for spec in re.findall(r"`([^`]+)`", section) if ":" in spec]
    assert {spec.partition(":")[0] for spec in specs} == set(logn_research.losses.LOSS_NAMES) - {"cross-entropy"}
    for spec in specs:
        name, options = parse_loss(spec)
        loss = logn_research.losses.make_loss(spec, ClassCounts([50, 5, 1], num_images=60))
        parameters = inspect.signature(type(loss)).parameters
        for option, value in options.items():
            assert option == "background_count" or parameters[option].default == value, (name, option)
