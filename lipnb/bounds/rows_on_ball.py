r"""One head on n tokens in a ball: each row by two tokens, then all rows, with a causal mask in their order.

Row i moves by its query, key and value terms, :math:`M (q_i + k_i + v_i)`. Let :math:`\alpha_j` be the norms of the
perturbations, and :math:`|M q_i| \le q\, \alpha_i`. The tokens lie in a convex set, a ball or less. A sink is one more
token of it, of value 0, that never moves. With a mask and no sink row 1 sees only itself and moves by
:math:`M \varepsilon_1`.

**One row.** Let :math:`v = |M|`, s the slope of the logits of token i, :math:`A x_i` and what a query bias adds, and k
at least :math:`|s|` times the standard deviation, under row i of P, of :math:`u^\top M x_j` for every unit vector u.
Half of its range times :math:`|s|` is enough, and `lipnb.bounds.alignment` has less. Then the key and value terms of
row i are at most

.. math:: h(a, b) = c_1 a + c_2 b, \qquad c_1 = \tfrac12 (T + v), \quad c_2 = \tfrac12 (T - v), \quad T^2 = v^2 + k^2,

where :math:`a \ge b` are the two largest :math:`\alpha_j` that row i sees. *Proof.* Along u the terms are
:math:`\sum_j P_j (M^\top u + \zeta_j s)^\top \varepsilon_j` with :math:`\zeta_j = u^\top M (x_j - m_i)`, of mean 0. So
the :math:`g_j = P_j |M^\top u + \zeta_j s|` have :math:`(\sum_j g_j)^2 \le |M^\top u|^2 + |s|^2 \operatorname{Var}
\zeta \le T^2`. As the others balance token j, :math:`\operatorname{Var} \zeta \ge P_j \zeta_j^2 + (P_j \zeta_j)^2 / (1
- P_j)`, that is :math:`P_j |\zeta_j| |s| \le \sqrt{P_j (1 - P_j)}\, k`; with :math:`P_j = (1 + r) / 2`,

.. math:: g_j \le P_j v + \sqrt{P_j (1 - P_j)}\, k = \tfrac12 \big(v + r v + \sqrt{1 - r^2}\, k\big)
    \le \tfrac12 (v + T) = c_1 .

Let token l have the largest :math:`\alpha_j`. Then :math:`\sum_j g_j \alpha_j \le b \sum_j g_j + (a - b)\, g_l \le
b\, T + (a - b)\, c_1 = h(a, b)`. By Cauchy-Schwarz :math:`h^2 \le (v^2 + k^2/2) (a^2 + b^2)`: this is never above the
lemma of `lipnb.bounds.ball`. With rotary positions, norms or caps each logit changes by at most :math:`|s|\, \alpha_j`
in a direction of its own, and k is by half of the range. The values are at most :math:`v \sum_j P_j \alpha_j \le v a`,
and the covariance of the changes with :math:`\zeta` is at most the product of half their ranges, :math:`\tfrac12 k (a +
b)`: together h with T = v + k.

**All rows.** Without a mask every row is at most :math:`q \alpha_i + h(a, b)`, with the two largest of all. With
one, let :math:`|\alpha| = 1`, :math:`h_i` be h of the two largest of :math:`\alpha_1, \dots, \alpha_i`, and
:math:`g = h_n`. The sum of squares is at most :math:`v^2 \alpha_1^2 + \sum_{i \ge 2} (q \alpha_i + h_i)^2`.

*If* :math:`\alpha_1` *is one of the two largest* of all, y the other, put g for every :math:`h_i`.

*If not*, let y be the one of the two that comes first, z the other, and :math:`\alpha_1 = w_0 < w_1 < \dots < w_m` the
maxima of the beginnings before y. Their rows are :math:`q w_s + h(w_s, w_{s-1})`, and that of y is
:math:`q y + h(y, w_m)`. For all :math:`a \le b \le c`

.. math:: (q b + h(b, a))^2 + (q c + h(c, b))^2 \le (q c + h(c, a))^2 + (q b + h(c, b))^2 :

right less left is :math:`(c - b) \big\{c_1 [2 q b + c_1 (b + c) + c_2 (a + b)] - c_2 (b - a) (2 q + c_1)\big\} \ge 0`,
as :math:`c_1 \ge c_2`. Used for :math:`(w_0, w_1, w_2)`, then :math:`(w_0, w_2, w_3)`, and so on up to
:math:`(w_0, w_m, y)`, it bounds the squares of these rows by those of :math:`q y + h(y, w_0)` and all
:math:`q w_s + g`, as g is at least :math:`h(w_{s+1}, w_s)` and :math:`h(y, w_m)`. So one row is
:math:`q y + c_1 y + c_2 \alpha_1`, and those of all tokens but y and the first are :math:`q \alpha_i + g`.

With the root of the sum of the other :math:`\alpha_i^2` as one more unknown, the sums of squares are at most those of
a matrix of order 3 or 4 applied to a unit vector. Both values of g occur as either of the two may be larger. QED

For :math:`q = k = t` and v = 1 no bound from the norms of A and V on a ball is smaller to leading order in t, if the
width is at least 3, or 2 for :math:`n \le 3`, and there is no window, sink or bias. With orthonormal w, e and f and
:math:`A / t = e w^\top + w e^\top - f f^\top`, tokens near w, -w, w, w, ... reach it: see the tests.
"""

import math

import numpy as np


def norm_of_rows(query: float, value: float, key: float, n: int, *, apart: bool) -> float:
    """Norm of n rows that see all tokens; arguments and direction of error as for `norm_of_masked_rows`.

    >>> round(norm_of_rows(1.0, 0.0, 1.0, 4, apart=True) ** 2, 3)
    5.236
    """
    c_1, c_2 = _of_two(value, key, apart)
    rest = math.sqrt(max(n - 2, 0))  # columns y, z, the rest; every row has c_1 y + c_2 z
    return _norm([[query + c_1, c_2, 0], [c_1, query + c_2, 0], [rest * c_1, rest * c_2, query]])


def norm_of_masked_rows(query: float, value: float, key: float, n: int, *, apart: bool) -> float:
    r"""Norm of n rows under a causal mask: row 1 its value, row i of terms on token i and on two of tokens 1 to i.

    Parameters
    ----------
    query, value, key : float
        The sizes q, v and k above, 0 or more.
    n : int
        Number of tokens, at least 2. With a window rows see less, and the bound holds.
    apart : bool
        Whether key and value terms add as squares, :math:`T^2 = v^2 + k^2`; else T = v + k.

    Returns
    -------
    float
        The largest :math:`\big(v^2 \alpha_1^2 + \sum_{i \ge 2} (q \alpha_i + h_i)^2\big)^{1/2}` over unit vectors: an
        upper bound on the local Lipschitz constant, up to rounding of a few units, which is not counted.

    Notes
    -----
    Ours; proof above.

    Examples
    --------
    The leading constants for 2 and 3 tokens, the roots of 5/2 and 13/4:

    >>> [round(norm_of_masked_rows(1.0, 0.0, 1.0, n, apart=True) ** 2, 12) for n in (2, 3)]
    [2.5, 3.25]
    """
    c_1, c_2 = _of_two(value, key, apart)
    found = []
    for a, b in ((c_1, c_2), (c_2, c_1)):
        # alpha_1 is one of the two largest, y the other: columns alpha_1, y, the rest; g = a alpha_1 + b y
        rest = math.sqrt(n - 2)
        found.append([[value, 0, 0], [a, query + b, 0], [rest * a, rest * b, query]])
        if n > 2:  # it is not: columns alpha_1, y, z, the rest; g = a y + b z
            rest = math.sqrt(n - 3)
            first, second = [value, 0, 0, 0], [c_2, query + c_1, 0, 0]
            found.append([first, second, [0, a, query + b, 0], [0, rest * a, rest * b, query]])
    return max(map(_norm, found))


def _of_two(value, key, apart):
    """The numbers c_1 and c_2 of the lemma on one row."""
    T = math.hypot(value, key) if apart else value + key
    return (T + value) / 2, (T - value) / 2


def _norm(matrix):
    return np.linalg.norm(np.array(matrix), 2).item()
