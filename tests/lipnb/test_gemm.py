"""The matrix product route: chosen by a self-test, used inside a block only, as accurate as float32 is."""

import threading

import pytest
import torch

from lipnb import Attention, block_norms, local_lipschitz
from lipnb.jacobian import gemm
from lipnb.jacobian.weights import ScaledWeights
from lipnb.spectral import krylov


def setting():
    return torch.backends.mkldnn.matmul.fp32_precision


def test_the_route_is_one_of_the_two_and_is_measured_once():
    assert gemm.float32_route() in ("default", "onednn")
    assert gemm.float32_route() == gemm.float32_route()
    assert gemm._measured() is gemm._measured()


def test_a_route_is_taken_only_if_it_is_faster_and_accurate(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for seconds, error, route in (
        (1.0, 3e-7, "onednn"),
        (1.0, 1e-3, "default"),
        (1.99, 3e-7, "default"),
        (3.0, 3e-7, "default"),
    ):
        measured = ({"default": 2.0, "onednn": seconds}, error)
        monkeypatch.setattr(gemm, "_measured", lambda measured=measured: measured)
        assert gemm.float32_route() == route
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert gemm.float32_route() == "default"


def test_fastest_puts_the_setting_back_also_after_an_exception(monkeypatch):
    monkeypatch.setattr(gemm, "float32_route", lambda: "onednn")
    before = setting()
    with gemm.fastest(torch.float32, "cpu"):
        inside = setting()
    assert inside == "bf16" != before and setting() == before
    with pytest.raises(RuntimeError, match="on purpose"):
        with gemm.fastest(torch.float32, torch.device("cpu")):
            raise RuntimeError("on purpose")
    assert setting() == before


def test_threads_leave_the_setting_as_it_was(monkeypatch):
    """The second one in must not take the first one's setting for the user's."""
    monkeypatch.setattr(gemm, "float32_route", lambda: "onednn")
    before, first_in, second_in = setting(), threading.Event(), threading.Event()

    def first():
        with gemm.fastest(torch.float32, "cpu"):
            first_in.set()
            assert second_in.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(60)
    with gemm.fastest(torch.float32, "cpu"):
        second_in.set()
        thread.join()  # the first is out, the second still inside
        assert setting() == "bf16"
    assert setting() == before


def test_fastest_leaves_the_setting_alone_where_there_is_no_choice(monkeypatch):
    before = setting()
    monkeypatch.setattr(gemm, "float32_route", lambda: "onednn")
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "cuda")):
        with gemm.fastest(dtype, device):
            assert setting() == before
    monkeypatch.setattr(gemm, "float32_route", lambda: "default")
    with gemm.fastest(torch.float32, "cpu"):
        assert setting() == before


def test_the_product_of_the_route_is_accurate_to_float32():
    for shape in [(3, 5, 7), (200, 300, 100), (64, 1000, 64)]:
        generator = torch.Generator().manual_seed(0)
        left = torch.randn(shape[0], shape[1], generator=generator)
        right = torch.randn(shape[1], shape[2], generator=generator)
        exact = left.double() @ right.double()
        with gemm.fastest(torch.float32, "cpu"):
            error = ((left @ right).double() - exact).norm() / exact.norm()
        assert error < 2e-6


def test_without_the_setting_of_torch_2_9_the_default_is_used(monkeypatch):
    """``torch.backends.mkldnn.matmul.fp32_precision`` came with 2.9; pyproject.toml allows older versions."""
    monkeypatch.delattr(type(torch.backends.mkldnn), "matmul")
    gemm._measured.cache_clear()
    try:
        assert gemm.float32_route() == "default"
        with gemm.fastest(torch.float32, "cpu"):
            assert torch.ones(2, 2).mm(torch.ones(2, 2)).eq(2).all()
    finally:
        gemm._measured.cache_clear()


@pytest.mark.parametrize(("route", "memory"), [("cached", 2**30), ("streamed", 1)])
def test_only_products_take_the_route_and_nothing_between_two_of_them(monkeypatch, route, memory):
    """PyTorch sends a matrix times one vector to oneDNN too, where it is many times slower."""
    monkeypatch.setattr(gemm, "float32_route", lambda: "onednn")
    before, inside, between, take_off = setting(), [], [], krylov._project_out
    through_output = ScaledWeights.through_output

    def watched(weights, joined, **options):
        if joined.dtype == torch.float32:  # where oneDNN rounds to bfloat16 the run is made again in float64
            inside.append(setting())
        return through_output(weights, joined, **options)

    def orthogonal(*args, **options):
        between.append(setting())
        return take_off(*args, **options)

    monkeypatch.setattr(ScaledWeights, "through_output", watched)
    monkeypatch.setattr(krylov, "_project_out", orthogonal)
    generator = torch.Generator().manual_seed(0)
    f = Attention(*torch.randn(3, 2, 8, 16, generator=generator), torch.randn(2, 16, 8, generator=generator))
    lip = local_lipschitz(f, torch.randn(2, 9, 16, generator=generator), memory=memory)
    wide = Attention(*torch.randn(3, 1, 8, 80, generator=generator))
    if route == "cached":
        block_norms(wide, torch.randn(3, 80, generator=generator))
    assert lip.route == route and len(between) > 3 < len(inside)
    assert set(inside) == {"bf16"} and set(between) == {before} != {"bf16"}
