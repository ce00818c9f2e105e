"""How smooth is attention? Attention maps, their Jacobians in closed form, and local Lipschitz constants."""

from importlib import import_module

__version__ = "0.4.0"  # the only place: pyproject.toml reads it

MODULES = (
    "attention",
    "bounds",
    "certified",
    "corpora",
    "jacobian",
    "lipschitz",
    "measures",
    "models",
    "reference",
    "spectral",
    "sweeps",
    "worst_case",
)
LAZY = {
    "Attention": "attention",
    "AttentionJacobian": "jacobian",
    "AutodiffJacobian": "jacobian",
    "Bracket": "certified",
    "LocalLipschitz": "lipschitz",
    "SingularPair": "jacobian",
    "block_norms": "jacobian",
    "certify": "certified",
    "differentiable_lipschitz": "lipschitz",
    "local_lipschitz": "lipschitz",
    "reference_cases": "reference",
    "singular_pair": "jacobian",
}
__all__ = [*LAZY, *MODULES, "scan"]


def __getattr__(name):
    """Import modules on first access, so that a map and its Jacobian do not load plots and tables.

    Nor do plots, tables and the help of the command load torch.
    """
    if name in MODULES:
        return import_module(f"lipnb.{name}")
    if name in LAZY:
        return getattr(import_module(f"lipnb.{LAZY[name]}"), name)
    if name == "scan":  # re-exported from lipscan, as are the modules corpora, models and sweeps
        from lipscan.scanning import scan

        return scan
    raise AttributeError(f"module 'lipnb' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
