"""The shortest length looked at closely: each head, each token, each whole layer, and the network from end to end."""

import math

import torch

from lipnb.attention import Attention
from lipnb.jacobian import block_norms, singular_pair
from lipnb.lipschitz import local_lipschitz
from lipnb.models import whole_network
from lipnb.recording.table import GAP
from lipnb.scanning.checking import self_check
from lipnb.scanning.gaps import tried
from lipnb.scanning.reader import Reader

__all__ = ["heads", "layer", "network", "one_head", "relative", "tokens"]

ROUGH = 1e-3  # tolerance of what automatic differentiation measures


def relative(lipschitz: float, x, y) -> float:
    r"""The constant for changes in units of their tokens, :math:`L |x|_F / |f(x)|_F`; NaN where f(x) is zero."""
    x, y = (torch.linalg.vector_norm(tokens.double()).item() for tokens in (x, y))
    return lipschitz * x / y if y > 0 else math.nan


def one_head(f: Attention, head: int) -> Attention:
    """One head of an attention alone, with its part of the output matrix and no output bias.

    Examples
    --------
    >>> import torch
    >>> f = Attention(*(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)))
    >>> x = torch.ones(5, 4)
    >>> torch.equal(one_head(f, 1)(x), f(x)[:, 3:])
    True
    """
    group = head // (f.heads // f.groups)
    if f.joint_norm:  # a norm of all heads together: the others stay, without a part in the output
        output = f.output_matrices()
        alone = torch.zeros_like(output)
        alone[head] = output[head]
        return f.replace(output=alone, output_bias=None)
    parts = {}
    for name, tensor in f._tensors().items():
        if name not in ("frequencies", "output_bias"):
            place = group if name.startswith(("key", "value")) else head
            parts[name] = tensor[place : place + 1]
    return f.replace(**parts, output_bias=None)


def heads(reader: Reader, number: int, n: int, *, object: str, rtol: float, seed: int) -> list[dict]:
    """Rows of the heads of a layer at the first window: each with its part of the output matrix, alone."""
    model, read = reader.of("text", n)
    f, x = model.attention(number, object, n), read[number].received[:1]
    rows: list[dict] = []
    if not isinstance(f, Attention) or not self_check(model, number, read[number])[2]:
        return rows
    for head in range(f.heads):
        with tried(rows, f"head {head} of layer {number} at n = {n}"):
            alone = one_head(f, head)
            found = local_lipschitz(alone, x, rtol=rtol, seed=seed)
            rows.append(
                {
                    "layer": number,
                    "length": n,
                    "head": head,
                    "shares_keys_with": head // (f.heads // f.groups),
                    "lipschitz": found.value.item(),
                    "relative": relative(found.value.item(), x, alone(x)),
                    "converged": found.converged.item(),
                }
            )
    if all(GAP in row and row["reason"] == rows[0]["reason"] for row in rows):
        return [rows[0] | {GAP: f"all heads of layer {number} at n = {n}"}]
    return rows


def tokens(reader: Reader, number: int, n: int, *, object: str, rtol: float, seed: int) -> list[dict]:
    """Rows of the tokens of the first window: how far each moves the others, and its part in the steepest change."""
    model, read = reader.of("text", n)
    f, x = model.attention(number, object, n), read[number].received[0]
    if not isinstance(f, Attention) or not self_check(model, number, read[number])[2]:
        return []
    norms, pair = block_norms(f, x, seed=seed).double(), singular_pair(f, x, rtol=rtol, seed=seed)
    if not norms.isfinite().all():
        raise FloatingPointError("a block of the Jacobian is NaN or infinite.")
    others = norms - norms.diag().diag()
    rows = []
    for place in range(len(x)):
        rows.append(
            {
                "layer": number,
                "length": n,
                "place": place,
                **_word(model, reader.inputs[n], place),
                "radius": torch.linalg.vector_norm(x[place].double()).item(),
                "own": norms[place, place].item(),
                "moves": torch.linalg.vector_norm(others[:, place]).item(),
                "moves_most": int(others[:, place].argmax()),
                "moved": torch.linalg.vector_norm(others[place]).item(),
                "moved_most_by": int(others[place].argmax()),
                "in_steepest": pair.moving[place].item(),
                "out_steepest": pair.moved[place].item(),
            }
        )
    return rows


def _word(model, inputs, place):
    """A token as the vocabulary has it and, in quotes, as a reader would write it; a part of an image by its place."""
    if model.tokenizer is None or inputs.ndim != 2:
        return {"token": f"#{place}", "written": f"#{place}"}
    number = int(inputs[0, place])
    token = str(model.tokenizer.convert_ids_to_tokens(number))
    return {"token": token, "written": repr(_decoded(model.tokenizer, number, token))}


def _decoded(tokenizer, number, token):
    """What the tokenizer reads a token as: a space before it counts, and part of a character stays a sign."""
    read = tokenizer.decode([number], clean_up_tokenization_spaces=False)
    if token.startswith("\u2581") and not read.startswith(" "):  # SentencePiece drops the space that begins a text
        read = f" {read}"
    return token if not read or "\ufffd" in read else read


def layer(reader: Reader, number: int, n: int, *, seed: int) -> list[dict]:
    """The row of a whole layer, with residual, norms and MLP, at the first window."""
    _, read = reader.of("first", n)
    x, whole = read[number].stream, read[number].whole
    return [_row(whole, x, "layer", number, n, seed, True)]


def network(reader: Reader, n: int, to: str, *, seed: int) -> list[dict]:
    """The row of the network from what its first layer receives to its last layer, last hidden states or logits.

    To the last layer: no row where the last hidden states are what that layer gives.
    """
    model, read = reader.of("first", n)
    inputs, x = reader.inputs[n][:1], read[0].stream
    f = _to_last_layer(model, inputs) if to == "layers" else whole_network(model, inputs, to)
    if to == "layers" and _alike(f(x), whole_network(model, inputs)(x)):
        return []
    return [_row(f, x, to, -1, n, seed, to != "logits" and _alike(f(x), _composed(read, x)))]


def _to_last_layer(model, inputs):
    """The network as a map to what its last layer gives, before the norm, or whatever else, that may follow."""
    whole, last = whole_network(model, inputs), model.architecture.layers_of(model.module)[-1]

    def stack(x):
        given = []  # a module that layers share gives several times
        handle = last.register_forward_hook(lambda _, args, output: given.append(output))
        try:
            whole(x)
        finally:
            handle.remove()
        return given[-1][0] if isinstance(given[-1], tuple) else given[-1]

    return stack


@torch.no_grad()
def _composed(read, x):
    """The layers one after another, from the first one's tokens."""
    for one in read:
        x = one.whole(x)
    return x


def _alike(y, z):
    """Whether two computations of tokens are of the same map, up to rounding."""
    return bool(y.shape == z.shape and (y - z).abs().max() <= ROUGH * z.abs().max())


def _row(f, x, part, number, n, seed, composed):
    found = local_lipschitz(f, x, rtol=ROUGH, seed=seed)
    return {
        "part": part,
        "composed": composed,
        "layer": number,
        "length": n,
        "lipschitz": found.value.item(),
        "relative": relative(found.value.item(), x, f(x)),
        "residual": found.residual.item(),
        "converged": found.converged.item(),
        "steps": found.steps.item(),
    }
