"""When a run stops: how finely an answer without a certificate is settled, and a larger value that shows late."""

from spectra import SPECTRA, Diagonal, one, random_starts

from lipnb.spectral import FunctionGram, lanczos
from lipnb.spectral.krylov import Krylov


def test_an_answer_without_certificate_is_settled_four_times_finer_than_asked():
    """At the step where it stops the estimated error is a quarter of what is asked, and not before."""
    for rtol in [1e-1, 1e-2, 1e-3]:
        start, gram = random_starts(1, 120, 0), Diagonal(SPECTRA["bulk"][None]).gram
        found = lanczos(gram, start, rtol=rtol, confidence=None)
        krylov, errors = Krylov(FunctionGram(gram), start), []
        for _ in range(int(found.steps)):
            krylov.extend()
            errors.append(krylov.ritz().error[0])
        assert errors[-1] <= rtol / 4 < min(errors[:-1])


def test_a_larger_value_that_shows_late_is_looked_at():
    """Settled on 1, the run waits for its proof without looking; the 2 that comes up must be seen, and soon."""
    values = one(2.0, 1.0, size=400, rest=0.6)[None]
    start = random_starts(1, 400, 0)
    start[:, 0] *= 1e-8
    found = lanczos(Diagonal(values).gram, start, confidence=1 - 1e-6)
    assert abs(found.value.item() - 2) < 1e-3 and found.steps.item() < 12  # 14 where it is not looked at
    settled = lanczos(Diagonal(values).gram, start, confidence=None)
    assert abs(settled.value.item() - 1) < 0.05  # it did settle on 1 first
    assert settled.steps.item() < found.steps.item()
