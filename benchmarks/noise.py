"""Measures the noise samplers on one core, and OpenDP's beside them: `python -m benchmarks.noise`."""

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import count

import opendp.prelude as dp

from dpsql.privacy.sampling import discrete_gaussian, discrete_laplace

SCALES = (10, 10**3, 10**6)
FEW = 20
MANY = 1_000_000
OPENDP_CELLS = 50_000


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least time of several runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def opendp_rates(scale: int) -> tuple[float, float]:
    """Return OpenDP's Laplace and Gaussian samples per second."""
    domain = dp.vector_domain(dp.atom_domain(T=int))
    laplace = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=float(scale))
    gaussian = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=float(scale))
    cells = [0] * OPENDP_CELLS
    return (
        OPENDP_CELLS / seconds(partial(laplace, cells), 2),
        OPENDP_CELLS / seconds(partial(gaussian, cells), 2),
    )


def draw_new_scale(draw: Callable[[Fraction, int], object], scale: Fraction, shifts: Iterator[int]) -> None:
    """Draw few samples of a scale that no table is kept for."""
    draw(scale + Fraction(next(shifts), 7**9), FEW)


def main() -> None:
    """Print samples per second and the time of a small result, by law and scale."""
    dp.enable_features("contrib")
    print(f"{'law':9} {'scale':>8} {'samples/s':>11} {'OpenDP':>9} {'µs for 20':>10} {'new scale':>10}")
    for scale in SCALES:
        laplace_rate, gaussian_rate = opendp_rates(scale)
        for name, draw, parameter, other in (
            ("laplace", discrete_laplace, Fraction(scale), laplace_rate),
            ("gaussian", discrete_gaussian, Fraction(scale**2), gaussian_rate),
        ):
            rate = MANY / seconds(partial(draw, parameter, MANY), 3)
            few = seconds(partial(draw, parameter, FEW), 50)
            new = seconds(partial(draw_new_scale, draw, parameter, count(1)), 20)
            print(f"{name:9} {scale:8} {rate:11.3g} {other:9.3g} {few * 1e6:10.0f} {new * 1e6:10.0f}")


if __name__ == "__main__":
    main()
