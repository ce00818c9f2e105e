"""Full precision of float32 products: inside a block only, put back as it was, and certified with its own rounding."""

import threading

import pytest
import torch

from lipnb import Attention, AttentionJacobian, block_norms, local_lipschitz
from lipnb.jacobian import gemm
from lipnb.jacobian.cached import CachedGram
from lipnb.jacobian.gemm import full_precision
from lipnb.jacobian.streamed import StreamedGram
from lipnb.jacobian.token_norms import Blocks

MKLDNN = torch.backends.mkldnn.matmul


def setting():
    return MKLDNN.fp32_precision


@pytest.fixture(autouse=True)
def lowered():
    """A user's setting that rounds products."""
    before = setting()
    MKLDNN.fp32_precision = "bf16"
    yield
    MKLDNN.fp32_precision = before


def test_the_setting_is_put_back_also_after_an_exception():
    with full_precision(torch.float32, "cpu"):
        assert setting() == "ieee"
        with full_precision(torch.float32, torch.device("cpu")):
            assert setting() == "ieee"
        assert setting() == "ieee"
    assert setting() == "bf16"
    with pytest.raises(RuntimeError, match="on purpose"):
        with full_precision(torch.float32, "cpu"):
            raise RuntimeError("on purpose")
    assert setting() == "bf16"


def test_float64_is_left_alone():
    """Nothing lowers it, and so nothing is set for the whole process."""
    with full_precision(torch.float64, "cpu"):
        assert setting() == "bf16" and gemm.lowered("cpu")


def test_threads_leave_the_setting_as_it_was():
    """The second one in must not take the first one's setting for the user's."""
    first_in, second_in = threading.Event(), threading.Event()

    def first():
        with full_precision(torch.float32, "cpu"):
            first_in.set()
            assert second_in.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(60)
    with full_precision(torch.float32, "cpu"):
        second_in.set()
        thread.join()  # the first is out, the second still inside
        assert setting() == "ieee" and gemm.lowered("cpu")  # around it
    assert setting() == "bf16"


def test_before_torch_2_9_one_setting_for_all_is_put_back(monkeypatch):
    """``torch.backends.mkldnn.matmul.fp32_precision`` came with 2.9; pyproject.toml allows older versions."""
    now = ["medium"]
    monkeypatch.delattr(type(torch.backends.mkldnn), "matmul")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: now[-1])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", now.append)
    with full_precision(torch.float32, "cpu"):
        assert now == ["medium", "highest"]
    assert now == ["medium", "highest", "medium"]


def test_every_product_of_the_solvers_is_in_full_precision(monkeypatch):
    seen = []
    for kind, name in ((CachedGram, "gram"), (StreamedGram, "gram"), (Blocks, "forward"), (CachedGram, "jvp")):
        inner = getattr(kind, name)

        def product(self, u, inner=inner, route=f"{kind.__name__}.{name}"):
            seen.append((route, setting()))
            return inner(self, u)

        monkeypatch.setattr(kind, name, product)
    generator = torch.Generator().manual_seed(0)
    f = Attention(*torch.randn(3, 2, 8, 16, generator=generator), torch.randn(2, 16, 8, generator=generator))
    x = torch.randn(2, 9, 16, generator=generator)
    local_lipschitz(f, x, rtol=1e-3)
    local_lipschitz(f, x, rtol=1e-3, memory=1)
    AttentionJacobian(f, x).jvp(x)
    block_norms(Attention(*torch.randn(3, 1, 8, 80, generator=generator)), torch.randn(3, 80, generator=generator))
    assert {route for route, _ in seen} == {"CachedGram.gram", "StreamedGram.gram", "Blocks.forward", "CachedGram.jvp"}
    assert {now for _, now in seen} == {"ieee"} and setting() == "bf16"
