"""How smooth is attention? Attention maps, their Jacobians in closed form, and local Lipschitz constants."""

from importlib import import_module

from lipnb.attention import Attention
from lipnb.jacobian import AttentionJacobian, AutodiffJacobian
from lipnb.lipschitz import LocalLipschitz, local_lipschitz

__version__ = "0.1.0"

MODULES = ("attacks", "bounds", "bracket_tables", "corpora", "experiments", "figures", "invertible", "ledger",
           "measures", "models", "particles", "released", "results", "scaling", "spectral", "splitting", "training",
           "verification", "worst_case")
LAZY = {"Bracket": "bracket", "certify": "bracket"}
__all__ = ["Attention", "AttentionJacobian", "AutodiffJacobian", "LocalLipschitz", "local_lipschitz", *LAZY, *MODULES]


def __getattr__(name):
    """Modules are imported when first named, so that a map and its Jacobian do not pay for plots and tables."""
    if name in MODULES:
        return import_module(f"lipnb.{name}")
    if name in LAZY:
        return getattr(import_module(f"lipnb.{LAZY[name]}"), name)
    raise AttributeError(f"module 'lipnb' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
