"""Networks of one shape trained together: the steps of `lab.training.train`, stacked for all of them.

Small networks leave a GPU without work between two kernels. So networks that differ only in their seed are one
computation, a step of it is recorded once and replayed (a CUDA graph), and several such stacks run at the same time.
On a processor the same steps are taken one after the other.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from lab.training.loop import batch_of

__all__ = ["Stacked", "advance", "windows_of"]

WARM_UP = 3  # steps taken before one is recorded, and undone


def windows_of(token_ids, seeds, *, steps, batch, length, device):
    """All training windows for networks of these seeds, drawn by `batch_of`.

    Parameters
    ----------
    token_ids : LongTensor, shape (t,)
        The text.
    seeds : sequence of int
        One for each network.
    steps, batch, length : int
        As for `lab.training.train`.
    device : str
        Device of the result.

    Returns
    -------
    LongTensor, shape (steps, networks, batch, length + 1)
    """
    drawn = torch.empty(steps, len(seeds), batch, length + 1, dtype=torch.long)
    for step in range(steps):
        for place, seed in enumerate(seeds):
            inputs, targets = batch_of(token_ids, batch, length, seed, step + 1)
            drawn[step, place, :, :-1], drawn[step, place, :, -1] = inputs, targets[:, -1]
    return drawn.to(device)


class Stacked:
    """Networks of one shape, with a step of Adam at one rate for all of them.

    Parameters
    ----------
    networks : sequence of torch.nn.Module
        Map token ids (b, n) to logits (b, n, vocabulary); they are not changed.
    windows : LongTensor, shape (steps, networks, batch, length + 1)
        From `windows_of`, on the device for training.
    rate, betas : float, tuple of float
        As for `lab.training.train`, without decay or clipping.

    Attributes
    ----------
    losses : Tensor, shape (steps, networks)
        Losses of the steps taken so far.
    """

    def __init__(self, networks: Sequence[torch.nn.Module], windows: torch.Tensor, *, rate: float, betas: tuple):
        device, self.windows, self.done = windows.device, windows, 0
        self.base = deepcopy(networks[0]).to("meta")
        parameters, self.buffers = stack_module_state([deepcopy(one).to(device) for one in networks])
        self.parameters = {name: one.detach().requires_grad_() for name, one in parameters.items()}
        self.losses = torch.zeros(windows.shape[:2], device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), lr=rate, betas=betas, fused=on_gpu, capturable=on_gpu
        )
        self.stream = torch.cuda.Stream() if on_gpu else None  # separate, with its own cuBLAS workspace
        self.graph = self._recorded() if on_gpu else None

    def _logits(self, inputs, each):
        """Logits of each network at inputs (networks, b, n), or at the same ones (b, n)."""

        def of_one(parameters, buffers, inputs):
            return functional_call(self.base, (parameters, buffers), (inputs,))

        with sdpa_kernel(SDPBackend.MATH):  # fused kernels do not support stacked weights
            return vmap(of_one, in_dims=(0, 0, 0 if each else None))(self.parameters, self.buffers, inputs)

    def _take(self):
        """One step of all networks."""
        windows = self.windows.index_select(0, self.step)[0]
        logits = self._logits(windows[..., :-1], each=True)
        losses = cross_entropy(logits.flatten(0, 2), windows[..., 1:].flatten(), reduction="none")
        losses = losses.view(len(windows), -1).mean(1)
        self.optimizer.zero_grad()
        losses.sum().backward()
        self.optimizer.step()
        self.losses.index_copy_(0, self.step, losses.detach()[None])
        self.step += 1

    def _recorded(self):
        """A step as a CUDA graph; its warm-up steps are undone."""
        before = [one.detach().clone() for one in self.parameters.values()]
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._take()
        torch.cuda.synchronize()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), stream=self.stream):
            self._take()
        with torch.no_grad():
            for one, old in zip(self.parameters.values(), before, strict=True):
                one.copy_(old)
            for state in self.optimizer.state.values():
                for one in state.values():
                    one.zero_()
            self.step.zero_()
        torch.cuda.synchronize()
        return graph

    @torch.no_grad()
    def validation_losses(self, token_ids, length):
        """`lab.training.validation_loss` of each network: nats for each token, a list."""
        count = (len(token_ids) - 1) // length
        inputs, targets = (
            token_ids[at : count * length + at].to(self.step.device).view(count, length) for at in (0, 1)
        )
        logits = self._logits(inputs, each=False)
        losses = [cross_entropy(one.flatten(0, 1), targets.flatten(), reduction="none") for one in logits]
        return [one.double().mean().item() for one in losses]


def advance(stacks, steps):
    """Advance several `Stacked` until each has taken `steps` steps.

    Parameters
    ----------
    stacks : sequence of Stacked
        On a GPU they run concurrently.
    steps : int
        Counted from the start.
    """
    for _ in range(steps - min(one.done for one in stacks)):
        for one in stacks:
            if one.done == steps:
                continue
            if one.graph is None:
                one._take()
            else:
                with torch.cuda.stream(one.stream):
                    one.graph.replay()
            one.done += 1
    if any(one.graph for one in stacks):
        torch.cuda.synchronize()
