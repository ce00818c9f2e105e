"""Other solvers for the same number: each peer takes an attention map and one sequence, and counts its products.

A product is one J^T J u: one `jvp` and one `vjp`. Peers use automatic differentiation of a plain forward pass, in
torch's default settings, as the released code does; two of them also run on our closed-form products, to separate the
solver's part of a speed-up from that of the product.
"""

import warnings
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg, svds

from lab.benchmarks import ours
from lab.benchmarks.layers import plain_forward
from lipnb import AttentionJacobian

__all__ = ["PEERS", "Answer", "Products", "power", "released_fed_back"]

DENSE_LIMIT = 1600  # columns of the largest dense Jacobian; larger ones take minutes


class Answer(NamedTuple):
    """Answer of a peer: the singular value, the number of products J^T J, and whether its stopping rule was met."""

    value: float
    products: int
    converged: bool = True


class Products:
    """Counted products of a Jacobian at one sequence.

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (n, d)
        One sequence.
    closed : bool
        Whether to use our closed form instead of automatic differentiation.
    """

    def __init__(self, attention, x, *, closed=False):
        self.x, self.count = x, 0
        if closed:
            jacobian = AttentionJacobian(attention, x)
            self._jvp, self._vjp, self._gram = jacobian.jvp, jacobian.vjp, ours.gram(attention, x)
        else:
            forward = plain_forward(attention)
            # as released: the forward pass of the transpose is computed once, that of the tangent each time
            _, pullback = torch.func.vjp(forward, x)
            self._jvp = lambda u: torch.func.jvp(forward, (x,), (u,))[1]
            self._vjp = lambda w: pullback(w)[0]
            self._gram = lambda u: self._vjp(self._jvp(u))

    def jvp(self, u):
        """J u, shape (n, m)."""
        return self._jvp(u)

    def vjp(self, w):
        """J^T w, shape (n, d); counts as one product together with the preceding `jvp`."""
        self.count += 1
        return self._vjp(w)

    def gram(self, u):
        """J^T J u, shape (n, d)."""
        self.count += 1
        return self._gram(u)

    def operator(self, *, square):
        """SciPy operator on flattened arrays: J^T J if `square`, else J."""

        def flat(function, shape):
            def product(vector):
                u = torch.from_numpy(np.ascontiguousarray(vector.reshape(shape), dtype=self.numpy)).to(self.x.dtype)
                return function(u).flatten().numpy()

            return product

        size = self.x.numel()
        if square:
            return LinearOperator((size, size), matvec=flat(self.gram, self.x.shape), dtype=self.numpy)
        image = self.jvp(torch.zeros_like(self.x)).shape
        return LinearOperator(
            (image.numel(), size), matvec=flat(self.jvp, self.x.shape), rmatvec=flat(self.vjp, image), dtype=self.numpy
        )

    @property
    def numpy(self):
        """NumPy dtype of the tokens."""
        return np.dtype(str(self.x.dtype).removeprefix("torch."))


def _start(x, seed):
    """A Gaussian unit vector of the shape of `x`, from its own generator."""
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype).to(x.device)
    return u / u.norm()


def released_fed_back(attention, x, *, seed=0, threshold=1e-4, max_iter=100, closed=False, **_):
    """The released estimator with the tangent fed back, as its paper describes it.

    Power iteration on J^T J that stops when mu, an estimate of the *square* of the singular value, changes by at most
    `threshold`, absolutely; castin2024smooth, appendix E.1. MiniLM and BERT: 1e-4, 100; random GPT-2: 1e-3, 1000.

    Returns
    -------
    Answer
    """
    products = Products(attention, x, closed=closed)
    u, before, mu = _start(x, seed), 0.0, None
    while True:
        v = products.gram(u)
        mu = torch.dot(u.flatten(), v.flatten()).item()
        u = v / v.norm()
        settled = abs(mu - before) <= threshold
        if settled or products.count > max_iter:  # their limit does not count the first product
            return Answer(max(mu, 0.0) ** 0.5, products.count, settled)
        before = mu


def power(attention, x, *, seed=0, rtol=1e-4, truth=None, closed=True, max_iter=5000, **_):
    """Power iteration to convergence: within `rtol` of a known `truth`, else by its relative residual.

    Stopping at the truth favours it: no rule could stop earlier at this accuracy.

    Returns
    -------
    Answer
    """
    products = Products(attention, x, closed=closed)
    u = _start(x, seed)
    while True:
        v = products.gram(u)
        value = torch.dot(u.flatten(), v.flatten()).clamp_min(0).sqrt().item()
        misfit = (v - value**2 * u).norm().item() / value**2 / 2 if truth is None else 1 - value / truth
        if misfit <= rtol or products.count >= max_iter:
            return Answer(value, products.count, misfit <= rtol)
        u = v / v.norm()


def arpack_svds(attention, x, *, seed=0, rtol=1e-4, closed=False, **_):
    """`scipy.sparse.linalg.svds`, ARPACK with its default basis of 20; it squares the given tolerance."""
    products = Products(attention, x, closed=closed)
    start = _start(x, seed).flatten().numpy()
    value = svds(products.operator(square=False), k=1, tol=(2 * rtol) ** 0.5, v0=start, return_singular_vectors=False)
    return Answer(float(value[0]), products.count)


def arpack_eigsh(attention, x, *, seed=0, rtol=1e-4, closed=False, **_):
    """`scipy.sparse.linalg.eigsh` of J^T J with a small basis, the best setting of ARPACK that we found."""
    products = Products(attention, x, closed=closed)
    value = eigsh(
        products.operator(square=True),
        k=1,
        ncv=8,
        tol=2 * rtol,
        v0=_start(x, seed).flatten().numpy(),
        return_eigenvectors=False,
    )
    return Answer(float(value[0]) ** 0.5, products.count)


def scipy_lobpcg(attention, x, *, seed=0, rtol=1e-4, **_):
    """`scipy.sparse.linalg.lobpcg` of J^T J, after three power steps because its tolerance is absolute."""
    products = Products(attention, x)
    u = _start(x, seed)
    for _ in range(3):
        v = products.gram(u)
        scale, u = v.norm().item(), v / v.norm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it stops early; the table shows the error
        values, _ = lobpcg(
            products.operator(square=True), u.reshape(-1, 1).numpy(), tol=2 * rtol * scale, maxiter=200, largest=True
        )
    return Answer(float(values[0]) ** 0.5, products.count)


def primme_svds(attention, x, *, rtol=1e-4, **_):
    """PRIMME's `svds` with its default method; its tolerance bounds the residual relative to the norm."""
    import primme

    products = Products(attention, x)
    value = primme.svds(products.operator(square=False), k=1, tol=rtol, which="LM", return_singular_vectors=False)
    return Answer(float(value[0]), products.count)


def dense(attention, x, **_):
    """The whole Jacobian by reverse mode, and all its singular values; refused beyond `DENSE_LIMIT` columns."""
    if x.numel() > DENSE_LIMIT:
        raise ValueError(f"a dense Jacobian with {x.numel()} columns takes minutes: at most {DENSE_LIMIT}.")
    matrix = torch.func.jacrev(plain_forward(attention))(x).reshape(-1, x.numel())
    return Answer(torch.linalg.svdvals(matrix)[0].item(), 0)


PEERS = {
    "released, tangent fed back": released_fed_back,
    "power iteration, closed form": power,
    "scipy svds": arpack_svds,
    "scipy svds, closed form": partial(arpack_svds, closed=True),
    "scipy eigsh": arpack_eigsh,
    "scipy eigsh, closed form": partial(arpack_eigsh, closed=True),
    "scipy lobpcg": scipy_lobpcg,
    "PRIMME svds": primme_svds,
    "dense": dense,
}
if find_spec("primme") is None:
    del PEERS["PRIMME svds"]  # an optional package: pip install primme
