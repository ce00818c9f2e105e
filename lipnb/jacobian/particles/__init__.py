"""Attention on many weighted particles: products with its Jacobian in linear time, and the exact ones in tiles.

For few key dimensions (at most 3) and no mask, `SeparableJacobian` costs O(n) a product; `TiledJacobian` is exact,
costs O(n^2), and needs the memory of one tile. `separable_pays` says which to take. Both give the two products that
`lipnb.spectral` needs.
"""

from lipnb.jacobian.particles.merging import merge
from lipnb.jacobian.particles.separable import SeparableJacobian, separable_pays
from lipnb.jacobian.particles.tiled import TiledJacobian

__all__ = ["SeparableJacobian", "TiledJacobian", "merge", "separable_pays"]
