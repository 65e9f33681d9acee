"""The few distributions the rules need, against scipy.stats, which is another implementation of most of them."""

import itertools

import pytest
from scipy.stats import beta, binom, norm, t

from benchgate.stats import distributions

LEVELS = (1e-9, 0.005, 0.05, 0.3, 0.5, 0.95, 0.999)
COUNTS = [(k, n) for n in (1, 2, 59, 3000) for k in {0, 1, n // 3, n - 1, n} if k <= n]


@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_binomial_tails_are_those_of_scipy(k: int, n: int) -> None:
    for p in (0.0, 1e-6, 0.05, 0.5, 0.99, 1.0):
        assert distributions.binom_cdf(k, n, p) == pytest.approx(binom.cdf(k, n, p), rel=1e-9, abs=1e-300)
        assert distributions.binom_sf(k, n, p) == pytest.approx(binom.sf(k, n, p), rel=1e-9, abs=1e-300)
    assert (distributions.binom_cdf(-1, n, 0.5), distributions.binom_sf(-1, n, 0.5)) == (0.0, 1.0)


@pytest.mark.parametrize(("n", "p"), [*itertools.product((1, 7, 299, 100_000), (0.01, 0.5, 0.95))])
def test_binomial_quantile_is_the_first_count_whose_chance_reaches_it(n: int, p: float) -> None:
    for q in LEVELS:
        k = distributions.binom_ppf(q, n, p)
        assert binom.cdf(k, n, p) >= q * (1 - 1e-12)
        assert k == 0 or binom.cdf(k - 1, n, p) < q * (1 + 1e-12)


def test_quantiles_and_tails_are_those_of_scipy() -> None:
    for p in LEVELS:
        assert distributions.norm_ppf(p) == pytest.approx(norm.ppf(p), rel=1e-9, abs=1e-12)
        for freedom in (1, 3, 40):
            assert distributions.t_ppf(p, freedom) == pytest.approx(t.ppf(p, freedom), rel=1e-9, abs=1e-12)
        for a, b in ((1, 1), (3, 98), (0.37, 12.5)):
            x = float(beta.ppf(p, a, b))
            assert distributions.beta_ppf(p, a, b) == pytest.approx(x, rel=1e-9)
            assert distributions.beta_cdf(x, a, b) == pytest.approx(p, rel=1e-9)
    for z in (-9.0, -1.5, 0.0, 2.0, 12.0):
        assert distributions.norm_cdf(z) == pytest.approx(norm.cdf(z), rel=1e-9)
        assert distributions.norm_sf(z) == pytest.approx(norm.sf(z), rel=1e-9)
        assert distributions.t_sf(z, 3) == pytest.approx(t.sf(z, 3), rel=1e-9)
