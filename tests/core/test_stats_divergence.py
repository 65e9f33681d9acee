"""Divergences of listed probabilities: against hand-computed values, and bounds against the truth on random pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean, pool_means, skewness_adjusted_upper_limit
from benchgate.stats.divergence import exact_kld, kld_lower_bound, same_top1, shared_tokens


def ln(**probabilities: float) -> dict[str, float]:
    return {token: math.log(p) for token, p in probabilities.items()}


def test_exact_divergence_is_the_one_computed_by_hand() -> None:
    baseline, candidate = ln(a=0.5, b=0.25, c=0.25), ln(a=0.25, b=0.5, c=0.25)
    assert exact_kld(baseline, candidate) == pytest.approx(0.25 * math.log(2))
    assert exact_kld(baseline, baseline) == 0
    assert exact_kld(ln(a=0.9, b=0.1), ln(a=0.1, b=0.9)) == pytest.approx(0.8 * math.log(9))


def test_divergence_is_not_the_same_the_other_way_round() -> None:
    one, other = ln(a=0.9, b=0.05, c=0.05), ln(a=0.4, b=0.3, c=0.3)
    assert exact_kld(one, other) == pytest.approx(0.9 * math.log(2.25) + 0.1 * math.log(1 / 6))
    assert exact_kld(other, one) == pytest.approx(0.4 * math.log(4 / 9) + 0.6 * math.log(6))


def test_what_a_server_computed_as_nothing_counts_as_the_least_it_could_tell() -> None:
    gone = exact_kld(ln(a=0.5, b=0.5), {"a": 0.0, "b": -3.4e38})
    assert gone == pytest.approx(0.5 * math.log(0.5) + 0.5 * (math.log(0.5) + 87.3))
    assert gone == exact_kld(ln(a=0.5, b=0.5), {"a": 0.0})


def test_listing_of_a_part_is_not_taken_for_the_whole_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"probability of 0\.9000"):
        exact_kld(ln(a=0.6, b=0.3), ln(a=0.5, b=0.5))


def test_bound_over_shared_tokens_is_the_one_computed_by_hand() -> None:
    found = kld_lower_bound(ln(a=0.6, b=0.2), ln(a=0.3, b=0.3))
    assert found == pytest.approx(0.6 * math.log(2) + 0.2 * math.log(2 / 3) + 0.2 * math.log(0.5))


def test_bound_knows_that_what_is_not_listed_is_no_more_than_the_least_listed() -> None:
    """b is not listed by the candidate, whose least is 0.01: so it has 0.01 there at most, and 0.39 are elsewhere."""
    found = kld_lower_bound(ln(a=0.6, b=0.2), ln(a=0.6, c=0.01))
    assert found == pytest.approx(0.2 * math.log(20) + 0.2 * math.log(0.2 / 0.39))
    assert kld_lower_bound(ln(a=0.6, b=0.2), ln(a=0.6, c=0.3)) == pytest.approx(0)  # b may have its 0.2 there too


def test_candidate_that_shares_no_token_is_far_and_not_near() -> None:
    found = kld_lower_bound(ln(a=0.9, b=0.05), ln(c=0.9, d=0.05))
    assert found == pytest.approx(0.9 * math.log(18) + 0.05 * math.log(0.05 / 0.9))


def test_tokens_that_are_told_by_texts_alone_give_the_simple_bound() -> None:
    """What one list does not show may stand in it under a text that another token has, too."""
    assert kld_lower_bound(ln(a=0.9, b=0.05), ln(c=0.9, d=0.05), named=False) == 0
    generator = np.random.default_rng(14)
    for _ in range(200):
        p, q = random_pair(generator)
        lists = listing(p, 5), listing(q, 5)
        assert kld_lower_bound(*lists, named=False) == pytest.approx(max(0.0, simple_bound(*lists)), abs=1e-4)


def test_bound_of_listings_of_unlike_lengths_uses_as_many_tokens_of_both() -> None:
    short = kld_lower_bound(ln(a=0.6, b=0.2), ln(a=0.3, b=0.3))
    assert kld_lower_bound(ln(a=0.6, b=0.2, c=0.1, d=0.05), ln(a=0.3, b=0.3)) == pytest.approx(short)


def random_pair(generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Two distributions over one vocabulary, near each other or far."""
    size = int(generator.integers(4, 60))
    p = generator.dirichlet(np.full(size, generator.choice([0.05, 0.3, 1.0])))
    noise = np.exp(generator.normal(0, generator.choice([0.01, 0.5, 3.0]), size))
    q = p * noise + generator.choice([1e-9, 1e-3]) * generator.dirichlet(np.ones(size))
    p = np.maximum(p, 1e-12)
    return p / p.sum(), q / q.sum()


def listing(probabilities: FloatArray, top: int) -> dict[str, float]:
    best = np.argsort(-probabilities)[:top]
    return {f"t{token}": math.log(probabilities[token]) for token in best}


def simple_bound(baseline: dict[str, float], candidate: dict[str, float]) -> float:
    """The tokens that both list, and the rest as one."""
    shared = baseline.keys() & candidate.keys()
    known = sum(math.exp(baseline[t]) * (baseline[t] - candidate[t]) for t in shared)
    p, q = (1 - sum(math.exp(one[t]) for t in shared) for one in (baseline, candidate))
    return known + (p * math.log(p / q) if p > 1e-5 and q > 1e-5 else 0.0)


def test_bound_never_passes_the_truth_and_is_never_less_than_the_simple_one() -> None:
    generator = np.random.default_rng(11)
    gaps = []
    for _ in range(1500):
        p, q = random_pair(generator)
        top = int(generator.integers(2, len(p) + 1))
        truth = exact_kld(listing(p, len(p)), listing(q, len(q)))
        found = kld_lower_bound(listing(p, top), listing(q, top))
        assert found <= truth + 1e-5
        assert found >= simple_bound(listing(p, top), listing(q, top)) - 1e-4
        gaps.append(truth - found)
    assert min(gaps) < 1e-6 < max(gaps)  # both lists of everything, and of nearly nothing


def test_bound_of_two_whole_vocabularies_is_the_divergence_itself() -> None:
    generator = np.random.default_rng(12)
    for _ in range(100):
        p, q = random_pair(generator)
        whole = listing(p, len(p)), listing(q, len(q))
        assert kld_lower_bound(*whole) == pytest.approx(exact_kld(*whole), abs=2e-5)


def test_same_most_probable_token_counts_ties_as_the_same() -> None:
    assert same_top1(ln(a=0.6, b=0.4), ln(a=0.5, c=0.3))
    assert not same_top1(ln(a=0.6, b=0.4), ln(b=0.5, a=0.3))
    assert same_top1(ln(a=0.4, b=0.4), ln(b=0.5, a=0.3))
    assert shared_tokens(ln(a=0.6, b=0.4), ln(b=0.5, c=0.3)) == 1


def test_standard_error_over_pieces_is_the_spread_that_repeating_the_measurement_shows() -> None:
    """25 pieces of 8 positions whose divergences move together: what one sample tells of its own mean's spread."""
    generator = np.random.default_rng(13)
    pieces = [f"p{number}" for number in range(25) for _ in range(8)]
    means, told, naive = [], [], []
    for _ in range(1500):
        common = np.repeat(generator.gamma(0.5, 1.0, 25), 8)
        values = common + generator.gamma(0.5, 1.0, 200)
        found = cluster_mean(values, pieces)
        assert found is not None
        means.append(found.mean)
        told.append(found.error**2)
        naive.append(float(values.var(ddof=1)) / 200)
    truth = float(np.var(means))
    assert float(np.mean(told)) == pytest.approx(truth, rel=0.12)
    assert float(np.mean(naive)) < truth / 3


def coverage(sigma: float, times: int) -> tuple[float, float]:
    """How often the mean of log-normal values, three to each of 65 pieces, lies above Hall's limit and Student's."""
    generator = np.random.default_rng(15)
    pieces = [f"p{number}" for number in range(65) for _ in range(3)]
    truth, beyond = math.exp(sigma**2 / 2), np.zeros(2)
    for _ in range(times):
        common = np.repeat(generator.normal(0, 0.4 * sigma, 65), 3)
        values = np.exp(common + generator.normal(0, math.sqrt(1 - 0.4**2) * sigma, 195))
        found = cluster_mean(values, pieces)
        raised = skewness_adjusted_upper_limit(values, pieces, 0.05)
        assert found is not None and raised is not None
        beyond += [raised < truth, pool_means([found]).limits(0.05).upper < truth]
    return float(beyond[0]) / times, float(beyond[1]) / times


def test_upper_limit_of_a_long_tail_keeps_its_promise_better_than_students() -> None:
    raised, students = coverage(1.5, 600)
    assert raised <= 0.12 < 0.13 <= students


def test_upper_limit_of_what_is_not_skewed_is_students() -> None:
    pieces = [f"p{number}" for number in range(20)]
    values = np.array([-1.0, 1.0] * 10)
    found = cluster_mean(values, pieces)
    assert found is not None
    assert skewness_adjusted_upper_limit(values, pieces, 0.05) == pytest.approx(pool_means([found]).limits(0.05).upper)
    assert skewness_adjusted_upper_limit(np.zeros(20), pieces, 0.05) == 0
    assert skewness_adjusted_upper_limit(np.array([1.0, 2.0]), ["a", "b"], 0.05) is None
    assert skewness_adjusted_upper_limit(np.array([1.0, math.nan, 3.0]), ["a", "b", "c"], 0.05) is None
