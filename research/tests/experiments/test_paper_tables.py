"""The paper's numbers: complete, plausible, and consistent from table to table."""

import numpy as np
import pytest
from logn_research.experiments.paper_tables import (
    COMPONENTS,
    ERRORS,
    FRAMEWORKS,
    MARGIN_VALUES,
    MARGINS,
    ONLINE,
    TABLE1,
    paper_row,
)


def test_table1_has_every_row():
    assert len(TABLE1) == 39
    by_framework = {name: [row for row in TABLE1 if row.framework == name] for name in FRAMEWORKS}
    assert [len(rows) for rows in by_framework.values()] == [12, 14, 13]
    for rows in by_framework.values():
        for sampler in ("random", "rfs"):
            assert {"CE", "Seesaw", "LogA", "LogN"} <= {row.method for row in rows if row.sampler == sampler}
    assert len({(row.framework, row.method, row.sampler) for row in TABLE1}) == 39


def test_the_groups_add_up_to_the_whole():
    rows = [row for row in (*TABLE1, *COMPONENTS, *MARGINS) if row.common is not None]
    groups = np.array([(row.rare, row.common, row.frequent) for row in rows])
    whole = np.array([row.ap for row in rows])
    # AP is the mean over classes, so the shares of the groups are the same in every row, whatever they are.
    shares = np.linalg.lstsq(groups, whole, rcond=None)[0]
    np.testing.assert_allclose(groups @ shares, whole, atol=0.1)
    assert shares.sum() == pytest.approx(1, abs=0.01)
    assert (shares > 0.15).all()
    assert all(-0.5 < row.box_ap - row.ap < 4 for row in rows)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sampler", ["random", "rfs"])
def test_logn_is_the_best_row_of_its_block(framework, sampler):
    block = [row for row in TABLE1 if row.framework == framework and row.sampler in (sampler, "mfs")]
    block = [row for row in block if sampler == "rfs" or row.sampler == "random"]
    assert max(block, key=lambda row: row.box_ap).method == "LogN"
    assert max(block, key=lambda row: row.ap).method == "LogN"


def test_corrections_have_no_epochs_of_their_own():
    assert all((row.epochs == "-") == (row.method in ("LogA", "LogN")) for row in TABLE1)
    assert {row.epochs for row in TABLE1 if row.method.startswith("LOCE")} == {"24+6"}


def test_the_tables_agree_on_logn():
    numbers = {
        (row.box_ap, row.ap, row.rare, row.common, row.frequent)
        for row in (paper_row(TABLE1, "LogN"), COMPONENTS[4], MARGINS[-1])
    }
    assert numbers == {(29.8, 29.0, 22.9, 28.8, 31.8)}


def test_the_squared_deviation_is_half_a_point_below_logn():
    squared = paper_row(COMPONENTS, "LogN, squared std")
    assert squared.ap == pytest.approx(COMPONENTS[4].ap - 0.5)
    assert squared.rare == 23.1
    assert squared.box_ap is None


def test_what_the_figures_say_is_there():
    assert len(ONLINE) == 3
    assert set(MARGIN_VALUES) == {row.method for row in MARGINS}
    assert ERRORS["std"]["Cls"] < ERRORS["margin"]["Cls"] < ERRORS["none"]["Cls"]
