"""A network at work: one pass for every layer, its layers one after another, and many threads with one network."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from cases import relative
from hub import small_model
from scans import WORDS, small

from lipnb import AutodiffJacobian, local_lipschitz
from lipnb.jacobian.autodiff import plain_kernels
from lipscan import models
from lipscan.models import files
from lipscan.models.changes import unchanged
from lipscan.models.hooks import capture
from lipscan.models.network import run

SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


TEXT = dict(vocab_size=40, max_position_embeddings=64, **SIZES)


PATIENCE = 120  # seconds after which a thread is taken to wait for ever


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("threads")


@pytest.fixture(scope="module")
def loaded(folder):
    """Closed forms and modules of their own; ALBERT's layers share one."""
    sizes = dict(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=64, bos_token_id=1, eos_token_id=1)
    kinds = {
        "Bert": TEXT,
        "GPT2": sizes,
        "Llama": TEXT | {"num_key_value_heads": 1, "pad_token_id": None},
        "Albert": TEXT | {"embedding_size": 8},
        "Starcoder2": TEXT | {"num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 1},
    }
    small = {kind: small_model(folder / kind, kind.lower(), settings) for kind, settings in kinds.items()}
    found = {kind: models.load(place, dtype=torch.float64) for kind, place in small.items()}
    for kind in ("Albert", "Starcoder2"):
        whole = found[kind]
        found[f"{kind} by its module"] = replace(whole, architecture=replace(whole.architecture, matrices=None))
    return found


@pytest.fixture
def hurried():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def text(number, b=1):
    return torch.randint(2, 40, (b, 4 + number % 5), generator=torch.Generator().manual_seed(number))


def hooks_on(network):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())


def ends(task):
    """What a task gives in a thread, which must end."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(task).result(timeout=PATIENCE)


def test_four_threads_read_and_measure_their_own_texts(folder, loaded, hurried):
    def measure(job):
        kind, model, number = job
        if kind == "drawn":
            return models.load(folder / "Bert", random=True, seed=3).module.embeddings.word_embeddings.weight
        if kind == "activations":
            return model.activations(text(number, 2), number % 2)
        read, layer = models.readings(model, text(number)), number % 2
        if kind == "readings":
            return torch.cat([part.flatten() for one in read for part in (one.stream, one.received, one.given)])
        x = read[layer].received
        if kind == "module":
            f = AutodiffJacobian(torch.nn.Sequential(torch.nn.Softmax(-1), torch.nn.Tanh()), x)
            return torch.cat([part.flatten() for part in (f.jvp(x + i) for i in range(20))])
        of = {"attention": (model.attention(layer), x), "layer": (read[layer].whole, read[layer].stream)}
        return local_lipschitz(*(of | {"network": (model.network(), read[0].stream)})[kind], rtol=1e-4).value

    jobs = [(kind, model, n) for n in range(4) for kind in ("readings", "activations") for model in loaded.values()]
    some = [loaded[name] for name in ("Bert", "Starcoder2 by its module", "Albert by its module")]
    jobs += [(kind, model, i) for kind in ("attention", "layer", "module") for i, model in enumerate(some)]
    jobs += [("network", loaded["Albert"], 3), *[("drawn", None, 0)] * 3, *[("module", some[0], 5)] * 3]
    expected = [measure(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        for one, found in zip(expected, pool.map(measure, jobs), strict=True):
            assert torch.allclose(one, found, rtol=1e-6, atol=0)
    assert not any(hooks_on(model.module) for model in loaded.values())


def test_a_call_from_inside_a_call_is_another_one(loaded):
    for model in loaded.values():
        read = models.readings(model, text(0))

        def change(x, model=model):  # within a pass: other texts, a map, and all of the network
            models.readings(model, text(1))
            model.network()(model.activations(text(2), 0, "block"))
            return x + model.attention(0)(model.activations(text(3), 0)).mean()

        def asked(model=model, read=read, change=change):
            return models.answer(model, 1, read[1], change)

        moved = read[1].received + model.attention(0)(model.activations(text(3), 0)).mean()
        assert relative(ends(asked), model.attention(1)(moved)) < 1e-6


def test_who_runs_the_network_in_another_thread_is_neither_noted_nor_stopped(loaded):
    model = loaded["Bert"]
    network, layer = model.module, model.architecture.layers_of(model.module)[0]
    alone = network(text(0)).last_hidden_state
    with capture(layer, before=(layer, 0)) as calls:
        assert torch.equal(ends(lambda: network(text(0))).last_hidden_state, alone)
    assert not calls
    with capture(layer) as outer, capture(layer, before=(layer, 0)):  # of two blocks that one ends which stops
        network(text(0))
    assert len(outer) == 1


class Interrupted:
    """Raises KeyboardInterrupt before one line of the files that change a network, as Ctrl-C may."""

    FILES = ("hooks.py", "changes.py", "network.py", "module_attention.py")

    def __init__(self, line):
        self.left = line

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *error):
        sys.settrace(self.before)

    def trace(self, frame, event, arg):
        if "lipscan" not in frame.f_code.co_filename or not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


def test_an_interrupt_at_any_line_leaves_the_network_as_it_was(loaded):
    lines = random.Random(0)
    for name in ("Starcoder2 by its module", "Albert by its module"):
        model = loaded[name]
        network, ids = model.module, text(6)
        x = model.activations(ids, 1)
        expected = model.attention(1)(x)
        tables = {key: (buffer, buffer.clone()) for key, buffer in network.named_buffers()}
        for task in (
            lambda model=model, ids=ids: model.activations(ids, 1),
            lambda model=model, ids=ids: models.readings(model, ids),
            lambda model=model, x=x: model.attention(1)(x),
        ):
            counter = Interrupted(0)
            with counter:
                task()
            assert counter.left < -12
            for line in lines.sample(range(1, -counter.left), 12):
                with pytest.raises(KeyboardInterrupt), Interrupted(line):
                    task()
                assert not hooks_on(network)
                for key, buffer in network.named_buffers():
                    assert buffer is tables[key][0] and torch.equal(buffer, tables[key][1])
        assert ends(lambda model=model, x=x: relative(model.attention(1)(x), expected)) < 1e-12


def test_a_pass_writes_nothing_that_is_as_it_was_and_an_interrupt_stays_one(loaded):
    network = loaded["Llama"].module
    held = {id(module): (module._modules, module._buffers) for module in network.modules()}
    run(network, "input_ids", text(0))
    for module in network.modules():
        assert module._modules is held[id(module)][0] and module._buffers is held[id(module)][1]
    with pytest.raises(KeyboardInterrupt), unchanged(network):
        network.config.vocab_size += 1
        raise KeyboardInterrupt
    assert network.config.vocab_size == 40


def test_the_last_thread_puts_settings_back(monkeypatch):
    """Threads that saved and put back by themselves left the settings of one with the other."""

    def kernels():
        backends = torch.backends
        return backends.mha.get_fastpath_enabled(), backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled()

    from transformers.utils import logging

    monkeypatch.setattr(logging.get_logger("transformers"), "level", logging.INFO)  # `make test` asks for silence
    states = {plain_kernels: kernels, files.quiet: logging.get_verbosity}
    for block, state in states.items():
        before, begun, leave = state(), threading.Event(), threading.Event()

        def other(block=block, begun=begun, leave=leave):
            with block():
                begun.set()
                assert leave.wait(PATIENCE)

        with ThreadPoolExecutor(1) as pool:
            with block():
                inside, task = state(), pool.submit(other)
                assert begun.wait(PATIENCE)
            assert state() == inside != before
            leave.set()
            task.result()
        assert state() == before


def test_one_pass_reads_what_every_layer_receives(bert):
    model = small(bert)
    ids = models.random_windows(model, WORDS, 6, 3)
    for layer, read in enumerate(models.readings(model, ids)):
        assert torch.equal(read.received, model.activations(ids, layer))
        assert torch.equal(read.stream, model.activations(ids, layer, "block"))
        changed = models.answer(model, layer, read, lambda x: x.flip(1))
        assert torch.allclose(changed, model.attention(layer)(read.received.flip(1)), rtol=0, atol=1e-5)
        assert torch.equal(read.given, models.answer(model, layer, read, lambda x: x))


def test_the_whole_network_is_its_layers_one_after_another_at_any_tokens(bert):
    """At embeddings that are not those of the ids, which play no part."""
    model = small(bert)
    ids = models.random_windows(model, WORDS, 6, 1)
    read = models.readings(model, ids)
    x = read[0].stream.flip(1).cos()
    found = models.network.whole_network(model, ids)(x)
    assert torch.allclose(found, read[1].whole(read[0].whole(x)), rtol=0, atol=1e-12)
    assert torch.equal(found, models.network.whole_network(model, ids.flip(1))(x))
