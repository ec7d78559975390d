"""The class mix of a deployment from logits without labels."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logn
from logn.calibrators.class_mix.calibration import fit_temperature
from logn.calibrators.class_mix.likelihood import log_likelihood, most_likely_mixes
from logn.calibrators.class_mix.prior_estimate import total_variation
from logn.calibrators.class_mix.rows import read_logit_rows
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter

TRAINING = np.array([0.6, 0.25, 0.1, 0.05])
DEPLOYED = np.array([0.2, 0.2, 0.3, 0.3])


def draw(mix, rows, seed, apart=2.5):
    """Calibrated logits for the mix TRAINING of rows whose classes have the mix `mix`, and the classes."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(mix), size=rows, p=mix)
    seen = apart * np.eye(len(mix))[classes] + rng.normal(size=(rows, len(mix)))
    return apart * seen + np.log(TRAINING), classes


def saerens(logits, prior, steps=5000):
    """The fixed point of Saerens et al. as their paper writes it, in probabilities."""
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    mix = prior.copy()
    for _ in range(steps):
        adapted = scores * (mix / prior)
        mix = (adapted / adapted.sum(axis=1, keepdims=True)).mean(axis=0)
    return mix


def estimate(logits, **options):
    return logn.estimate_prior(logits, **({"counts": TRAINING, "activation": "softmax", "num_bootstrap": 50} | options))


def test_it_is_the_fixed_point_of_the_paper():
    logits, _ = draw(DEPLOYED, 1000, 0, apart=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)
        np.testing.assert_allclose(estimate(logits).shares, saerens(logits, TRAINING), atol=5e-4)


@pytest.mark.parametrize("mix", [DEPLOYED, TRAINING, np.array([0.97, 0.01, 0.01, 0.01])])
def test_a_known_mix_is_recovered_to_2_percent(mix):
    logits, _ = draw(mix, 40_000, 1)
    found = estimate(logits)
    assert total_variation(found.shares, mix) < 0.02
    assert found.precision < 0.02
    assert found.doubts == ()
    assert found.shifted == (mix is not TRAINING)


def test_a_deployment_of_one_class():
    logits, _ = draw(np.array([0.0, 0.0, 0.0, 1.0]), 5000, 2)
    found = estimate(logits)
    assert found.shares[3] > 0.98
    assert (found.target > 0).all()  # so that a method can aim at it


def test_it_says_when_it_cannot():
    close, _ = draw(DEPLOYED, 300, 3, apart=0.3)
    with pytest.warns(logn.LogNWarning, match="rows tell the class mix only to ±"):
        assert estimate(close).precision > 0.02
    sure, classes = draw(TRAINING, 20_000, 4)
    with pytest.warns(logn.LogNWarning, match="too uncalibrated for EM"):
        estimate(sure, dev=(np.add(sure, [0.0, 0.0, 4.0, 4.0]), classes))


def test_errors_of_a_rare_class_show_where_it_is_frequent():
    def looking_alike(mix, seed):  # a quarter of the rarest class looks exactly like the one before
        logits, classes = draw(mix, 20_000, seed, apart=4.0)
        alike = (classes == 3) & (np.random.default_rng(seed + 1000).random(20_000) < 1 / 4)
        logits[alike] = logits[alike][:, [0, 1, 3, 2]]
        return logits, classes

    dev = looking_alike(TRAINING, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", logn.LogNWarning)  # of the labelled rows few are of it
        estimate(looking_alike(TRAINING, 21)[0], dev=dev)
    with pytest.warns(logn.LogNWarning, match="weighted to the mix that was found, it finds one that is off by"):
        estimate(looking_alike(DEPLOYED, 22)[0], dev=dev)


def test_labelled_rows_take_back_a_temperature():
    logits, _ = draw(DEPLOYED, 20_000, 5, apart=1.5)
    dev, classes = draw(TRAINING, 20_000, 6, apart=1.5)
    found = estimate(4 * logits, dev=(4 * dev, classes))
    assert found.temperature == pytest.approx(4.0, rel=0.05)
    assert total_variation(found.shares, DEPLOYED) < 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)
        assert total_variation(estimate(4 * logits).shares, DEPLOYED) > 0.05  # what it would be without


def test_intervals_cover_and_the_test_holds_its_level():
    covered, alarms = [], []
    for seed in range(60):
        logits, _ = draw(TRAINING, 400, 100 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", logn.LogNWarning)
            found = estimate(logits, num_bootstrap=100, confidence=0.9)
        covered.append((found.lower <= TRAINING) & (found.upper >= TRAINING))
        alarms.append(found.shifted)
    assert np.mean(covered) > 0.8  # 0.9 less three standard errors of 60 draws
    assert np.mean(alarms) < 0.14  # 0.05 and three standard errors


@pytest.mark.parametrize("proposals", [1, 5])
def test_of_rows_without_doubt_all_numbers_are_those_of_a_multinomial(proposals):
    seen = np.array([120, 280])
    rows = np.repeat(50 * np.eye(2) + np.log([0.5, 0.5]), seen, axis=0)
    logits = np.repeat(rows[:, None], proposals, axis=1)  # all proposals of an image say the same
    with pytest.warns(logn.LogNWarning, match="rows tell the class mix only to ± 4"):
        found = logn.estimate_prior(logits, counts=[500, 500], activation="softmax", num_bootstrap=2000)
    np.testing.assert_allclose(found.shares, [0.3, 0.7], atol=1e-6)
    # 95 % of the draws of images, however many proposals each has.
    reach = 1.96 * np.sqrt(0.3 * 0.7 / 400)
    np.testing.assert_allclose(found.upper - found.lower, 2 * reach, rtol=0.08)
    assert found.precision == pytest.approx(reach, rel=0.08)
    ratio = 2 * proposals * (seen * np.log(seen / 400 / 0.5)).sum()
    assert found.likelihood_ratio == pytest.approx(ratio, abs=0.05)
    assert found.p_value == pytest.approx(1 / 2001)  # no draw strays so far; a chance of 0 it is not


def test_bbse_cuts_shares_below_0_off():
    # Class 0 says (0.9, 0.1), class 1 (0.3, 0.7); a mean of (0.95, 0.05) is more than all of the first.
    dev = logn.LabelledRows(np.log([[0.9, 0.1], [0.3, 0.7]]), [0, 1])
    found = logn.estimate_prior(np.log([[0.95, 0.05]] * 9), method="bbse", dev=dev, activation="softmax")
    assert found.shares.tolist() == [1.0, 0.0]


def test_rows_of_no_class_tell_the_temperature_of_sigmoids_too():
    rng = np.random.default_rng(10)
    logits = np.stack([rng.normal(size=20_000), np.full(20_000, -9.0)], axis=1)
    labels = np.where(rng.random(20_000) < 1 / (1 + np.exp(-logits[:, 0])), 0, -1)
    rows = logn.LabelledRows(3 * logits, labels)
    assert fit_temperature(rows, "sigmoid") == pytest.approx(3.0, rel=0.05)


def test_bbse_on_worked_numbers_and_without_calibration():
    # Class 0 says (0.9, 0.1), class 1 (0.3, 0.7); a mean of (0.5, 0.5) is one third of the first.
    dev = logn.LabelledRows(np.log([[0.9, 0.1], [0.3, 0.7]]) + 5, [0, 1])
    found = logn.estimate_prior(np.log([[0.5, 0.5]] * 9), method="bbse", dev=dev, activation="softmax")
    np.testing.assert_allclose(found.shares, [1 / 3, 2 / 3])
    logits, _ = draw(DEPLOYED, 20_000, 7)
    rows, classes = draw(TRAINING, 20_000, 8)
    found = estimate(3 * logits + 1, method="bbse", dev=(3 * rows + 1, classes))
    assert total_variation(found.shares, DEPLOYED) < 0.02
    assert found.shifted is None


def test_sigmoids_have_a_share_each():
    rng = np.random.default_rng(9)
    there = rng.random((20_000, 2)) < [0.3, 0.02]
    seen = 3.0 * there + rng.normal(size=there.shape)
    prior = np.array([0.1, 0.1])
    logits = 3.0 * seen - 4.5 + np.log(prior / (1 - prior))
    moments = logn.ClassMoments(2, mean_probability=True, metadata=logn.StatisticsMetadata(activation="sigmoid"))
    trained = 3.0 * (rng.random((20_000, 2)) < prior) + rng.normal(size=there.shape)
    moments.update(3.0 * trained - 4.5 + np.log(prior / (1 - prior)))
    found = logn.estimate_prior(logits, moments, num_bootstrap=20)
    np.testing.assert_allclose(found.shares, [0.3, 0.02], atol=0.01)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 6))
def test_no_mix_is_more_likely_than_the_one_found(seed, classes):
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.normal(size=(60, classes)) * 2)
    found = most_likely_mixes(ratios, np.full(classes, 1 / classes))
    assert found.shares.sum() == pytest.approx(1.0)
    for other in rng.dirichlet(np.ones(classes), size=50):
        assert log_likelihood(ratios, other)[0] <= found.log_likelihood[0] + 0.006


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), offset=st.floats(-50, 50))
def test_what_all_columns_have_in_common_and_their_order_change_nothing(seed, offset):
    logits, _ = draw(DEPLOYED, 300, seed)
    order = np.random.default_rng(seed).permutation(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)
        straight = estimate(logits, num_bootstrap=2)
        turned = estimate((logits + offset)[:, order], counts=TRAINING[order], num_bootstrap=2)
    np.testing.assert_allclose(turned.shares, straight.shares[order], atol=2e-3)


def test_stores_files_and_statistics_give_the_same(tmp_path):
    logits, _ = draw(DEPLOYED, 3000, 10)
    logits = logits.astype(np.float32).reshape(30, 100, 4)
    training, _ = draw(TRAINING, 30_000, 11)
    moments = logn.ClassMoments(4, mean_probability=True, metadata=logn.StatisticsMetadata(background=0))
    moments.update(training)
    with PredictionWriter(tmp_path / "store", StoreHeader(num_columns=4, background=0, dtype="float32")) as writer:
        for image, rows in enumerate(logits):
            writer.append(image, logn.Proposals(np.zeros((100, 4)), rows, height=10, width=10))
    np.save(tmp_path / "a.npy", logits[:11])
    np.save(tmp_path / "b.npy", logits[11:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)
        plain, *others = (
            logn.estimate_prior(source, moments, num_bootstrap=20)
            for source in (logits, PredictionStore(tmp_path / "store"), [tmp_path / "a.npy", tmp_path / "b.npy"])
        )
    for other in others:
        np.testing.assert_array_equal(other.shares, plain.shares)
        np.testing.assert_array_equal(other.lower, plain.lower)
        assert other.units == 30
    assert len(plain.target) == 3  # the background is no class to aim at
    assert plain.target.sum() == pytest.approx(1.0)


def test_of_more_than_memory_should_hold_a_sample_serves(tmp_path):
    logits = np.random.default_rng(0).normal(size=(1000, 4))
    np.save(tmp_path / "a.npy", logits)
    rows = read_logit_rows(tmp_path / "a.npy", most_values=400)
    assert (rows.logits.shape, rows.total) == ((100, 4), 1000)
    np.testing.assert_array_equal(rows.logits, logits[rows.units])


def test_it_saves_loads_and_serves_as_a_target(tmp_path):
    logits, _ = draw(DEPLOYED, 20_000, 12)
    counts = logn.ClassCounts(1000 * TRAINING, names=("a", 'b,"', "c", "d"))
    with pytest.warns(logn.LogNWarning, match="The counts have class names, but those of the model are unknown"):
        found = estimate(logits, counts=counts)
    for name in ("mix.json", "mix.csv"):
        found.save(tmp_path / name)
        aimed = logn.fit_method(f"loga:target={tmp_path / name}", counts=counts)
        np.testing.assert_allclose(aimed.shift, np.log(found.target) - np.log(TRAINING), atol=1e-9)
    again = logn.PriorEstimate.load(tmp_path / "mix.json")
    np.testing.assert_array_equal(again.shares, found.shares)
    assert (again.names, again.conclusion) == (found.names, found.conclusion)
    with pytest.raises(logn.InputError, match=r"end in \.json or \.csv"):
        found.save(tmp_path / "mix.txt")


LOGITS = draw(DEPLOYED, 40, 13)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logits": np.zeros((0, 4))}, "to hold rows of logits, but it holds none"),
        ({"logits": np.where(np.arange(160).reshape(40, 4) == 9, np.nan, LOGITS)}, "row 2, column 1 is nan"),
        ({"logits": np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)}, "to be logits, but its rows sum to 1"),
        ({"logits": np.zeros(4)}, r"but got shape \(4,\)"),
        ({"logits": LOGITS[:, :1]}, "a single class has no mix"),
        ({"counts": [1, 2, 3]}, "to have 4 foreground classes, but got 3"),
        ({"counts": None}, "to know the mix of training, but got none"),
        ({"activation": "recorded"}, "`activation` to be known"),
        ({"method": "mlls"}, '`method` to be "em" or "bbse"'),
        ({"method": "bbse"}, "labelled rows"),
        ({"method": "bbse", "dev": (LOGITS, np.zeros(40, int))}, "but column 1 has none"),
        ({"dev": (LOGITS[:, :3], np.zeros(40, int))}, "the 4 columns of `logits`, but got 3"),
        ({"dev": (LOGITS, np.zeros(39, int))}, "one whole number for each of the 40 rows"),
        ({"num_bootstrap": 0}, "`num_bootstrap`"),
    ],
)
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(logn.InputError, match=words):
        estimate(**({"logits": LOGITS} | options))
