"""Measurements of a scan: layers at each length; at the shortest also heads, tokens, whole layers and the network."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.bounds.term_bounds import DEAR
from lipnb.certified import certify
from lipnb.checks import memory_allowance
from lipnb.jacobian import block_norms, gemm, singular_pair
from lipnb.jacobian.operators import operator_of
from lipnb.lipschitz import local_lipschitz, with_direction
from lipscan.models import Model, Reading, answer
from lipscan.models.hooks import capture
from lipscan.models.network import whole_network
from lipscan.recording.table import GAP, outward
from lipscan.scanning import catalogue
from lipscan.scanning.inputs import Reader
from lipscan.windows import decoded

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-5}  # networks compute softmax in float32 whatever their type
PAIRS = 2e11  # most operations for the norms of all blocks of a Jacobian by automatic differentiation
ROUGH = 1e-3  # tolerance of measurements by automatic differentiation
MAPPED = ("own", "moves", "moves_most", "moved", "moved_most_by")  # columns of tokens.csv from `block_norms`
DIRECTIONS, DIRECTION_SEED = (
    8,
    0x5EED_0F_A_7791C,
)  # random changes behind `typical`, and the seed of their own generator
PLAIN = (ValueError, RuntimeError, ArithmeticError)  # whose messages need no class name


@contextmanager
def tried(rows: list[dict], what: str) -> Iterator[None]:
    """Context that turns an error inside into a row of `rows` that names it, so that the scan goes on.

    Examples
    --------
    >>> rows = []
    >>> with tried(rows, "layer 2"):
    ...     raise ValueError("a product is infinite")
    >>> rows
    [{'gap': 'layer 2', 'reason': 'a product is infinite'}]
    """
    try:
        yield
    except Exception as error:  # arbitrary maps raise arbitrary errors
        said = (str(error).strip() or "no reason given").splitlines()[0]
        plain = type(error) in PLAIN or isinstance(error, ArithmeticError)
        said = said if plain else f"{type(error).__name__}: {said}"
        rows.append({GAP: what, "reason": shorten(said, 300, placeholder=" ...")})


@torch.no_grad()
def self_check(model: Model, layer: int, read: Reading) -> tuple[float, float, bool]:
    """Comparison of our map of a layer with the network, and of its mask with the model: error, leak, passed.

    The error is the largest difference between our output and the network's, over its largest entry. The leak is the
    relative change of the first half of the network's own outputs when the tokens that its attention receives in the
    second half are replaced: 0 for a causal layer, NaN for a single token. It must be zero exactly if the layer has a
    mask. The exception is a layer whose output depends on no token, by our map too: it cannot show a mask.
    """
    x, given = read.received, read.given
    f, tolerance = model.attention(layer, n=x.shape[-2]), TOLERANCE[x.dtype]
    error = ((f(x) - given).abs().max() / given.abs().max().clamp_min(1e-30)).item()
    half, leak = x.shape[1] // 2, math.nan
    if half:
        # also reverse and shift coordinates: attention may ignore the order of tokens, and a norm inside it a shift
        def other(x):
            return torch.cat([x[:, :half], x[:, half:].flip(1, 2) + 1], 1)

        changed = answer(model, layer, read, other)
        leak = ((changed - given)[:, :half].abs().max() / given[:, :half].abs().max().clamp_min(1e-30)).item()
    causal = not half or (leak <= tolerance) == model.masked
    if not causal and leak <= tolerance:
        causal = all((after - given).abs().max() <= tolerance * given.abs().max() for after in (changed, f(other(x))))
    return error, leak, bool(error <= tolerance and causal)


def closed_form_work(f: Callable, n: int) -> float | None:
    """Rough number of floating point operations of `lipnb.certify` in closed form; None without a closed form."""
    if not isinstance(f, Attention) or f.score != "dot":
        return None
    joined = min(f.output_width, f.heads * f.value_width)
    tested = n * joined**3 > DEAR and not f.joint_norm
    return (1.5 if tested else 6.0) * n * joined**3 + 8.0 * f.heads * n**2 * f.value_width**2


def measure(
    reader: Reader, layer: int, n: int, *, object: str, rtol: float, seed: int, certified: int, upper_work: float
) -> list[dict]:
    """Rows of one layer at one length, one for each window; the first `certified` ones get a certified upper bound.

    Without measurements if the self-check failed. Rows that describe gaps follow, see `tried`.
    """
    unknown = {"self_check": math.nan, "leak": math.nan, "passed": False, "radius": math.nan, "mean_radius": math.nan}
    place = {"layer": layer, "length": n} | unknown | {"lipschitz": math.nan}
    rows: list[dict] = [{**place, "window": i} for i in range(len(reader.inputs[n]))]
    gaps: list[dict] = []
    with tried(gaps, f"layer {layer} at n = {n}"):
        _fill(rows, gaps, reader, layer, n, object, {"rtol": rtol, "seed": seed}, certified, upper_work)
    return rows + gaps


def _fill(rows, gaps, reader, layer, n, object, options, certified, upper_work):
    """Complete the rows, each measurement separately, so that one that fails leaves the others."""
    model, read = reader.of("text", n)
    error, leak, passed = self_check(model, layer, read[layer])
    f, x = model.attention(layer, object, n), _input(read[layer], object)
    norms = torch.linalg.vector_norm(x.double(), dim=-1)
    for row, one in zip(rows, norms, strict=True):
        row |= {"self_check": error, "leak": leak, "passed": passed}
        row |= {"radius": one.max().item(), "mean_radius": one.square().mean().sqrt().item()}
    if not passed:
        return
    where, prepared, work = f"layer {layer} at n = {n}", None, closed_form_work(f, n)
    with tried(gaps, f"bounds in closed form of {where}"):
        prepared = catalogue.prepare(f)
    for i, row in enumerate(rows):
        one, here = x[i : i + 1], f"{where}, window {i}"
        with tried(gaps, here):
            found, worst = with_direction(f, one, **options)
            row |= _columns(found, f, one)
            row |= {"probable": outward(found.upper.item(), up=True), "route": found.route}
            row["column"] = _largest_column(f, one)
            shares = worst[0].double().square().sum(-1)
            row |= {"steepest_token": int(shares.argmax()), "steepest_share": shares.max().item()}
            row["typical"] = typical(f, one, row["lipschitz"], worst, options["seed"])
        row |= {"certified_lower": math.nan, "certified": math.nan}
        if i < certified and work is not None and work <= upper_work:
            with tried(gaps, f"certified bound of {here}"):
                bracket = certify(f, x[i], columns=0, rtol=1e-3, seed=options["seed"])
                row["certified_lower"] = outward(bracket.lower.item(), up=False)
                row["certified"] = outward(bracket.upper.item(), up=True)
        if prepared is None and i > 0:  # a bound whose norms are not prepared is expensive
            continue
        with tried(gaps, f"bounds in closed form of {here}"):
            row |= {f"log10_{key}": value for key, value in catalogue.evaluate(f, prepared, x[i]).items()}
    for name in reader.baselines:
        with tried(gaps, f"baseline ({name}) of {where}"):
            other, read = reader.of(name, n)
            base, received = other.attention(layer, object, n), _input(read[layer], object)
            rows[0][name] = local_lipschitz(base, received, **options).value.item()


def typical(f: Callable, x: Tensor, value: float, worst: Tensor, seed: int = 0) -> float:
    r"""How many times longer a small change in a random direction becomes: root mean square over directions.

    .. math::
        \frac{|J|_F}{\sqrt{N}}, \qquad N = n d, \qquad
        |J|_F^2 = |J v|^2 + (N - 1)\, \mathbb{E} |J u|^2

    with u uniform among the unit vectors orthogonal to v; their mean is taken over 8 of them. Treating the worst
    direction v exactly keeps it from making this mean uncertain.

    Parameters
    ----------
    f : callable
        The map, an `Attention` or any other.
    x : Tensor, shape (1, n, d)
        Tokens.
    value, worst : float and Tensor of shape (1, n, d)
        The constant and its direction v, as from `lipnb.lipschitz.with_direction`.
    seed : int
        Seed of the directions; the global random state is neither read nor changed.

    Returns
    -------
    float

    Examples
    --------
    >>> x = torch.zeros(1, 2, 2, dtype=torch.float64)
    >>> worst = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    >>> round(typical(lambda x: 3 * x, x, 3.0, worst), 6)
    3.0
    """
    size, v, squares = x.numel(), worst.double().view(1, -1), []
    generator = torch.Generator().manual_seed((seed + DIRECTION_SEED) % 2**64)
    with _precise(f, x):
        operator = operator_of(f, x, None, memory=memory_allowance(x.device), dense=False)
        for _ in range(DIRECTIONS):
            u = torch.randn(1, size, generator=generator, dtype=torch.float64, device="cpu").to(x.device)
            u = u - (u @ v.T) * v
            u = u / torch.linalg.vector_norm(u).clamp_min(1e-30)
            squares.append(((u * operator.gram(u.to(x.dtype))).sum() * operator.unit**2).item())
    return math.sqrt((value**2 + (size - 1) * sum(squares) / DIRECTIONS) / size)


def _precise(f, x):
    """Context of the package's own products in full precision, as the solver has them; a user's map runs as it is."""
    return gemm.full_precision(x.dtype, x.device) if isinstance(f, Attention) else nullcontext()


def _columns(found, f, x):
    """The answer of a solver as columns of the tables."""
    with _precise(f, x):
        given = f(x)
    return {
        "lipschitz": found.value.item(),
        "relative": relative(found.value.item(), x, given),
        "residual": found.residual.item(),
        "converged": found.converged.item(),
        "steps": found.steps.item(),
    }


def _solved(f, x, rtol, seed):
    """The constant of a map, as columns of the tables."""
    return _columns(local_lipschitz(f, x, rtol=rtol, seed=seed), f, x)


def _input(read, object):
    return read.stream if object == "block" else read.received


def _largest_column(f, x):
    """Largest column sum of the attention matrices at tokens (1, n, d): how much attention one token gets."""
    if not isinstance(f, Attention):
        return math.nan
    with _precise(f, x):
        return f.probabilities(x).sum(-2).amax().item()


def relative(lipschitz: float, x, y) -> float:
    r"""The constant relative to the norms of tokens, :math:`L |x|_F / |f(x)|_F`.

    Parameters
    ----------
    lipschitz : float
        Local Lipschitz constant of a map f at `x`.
    x, y : Tensor
        Tokens, and f(x).

    Returns
    -------
    float
        NaN if f(x) is zero.
    """
    x, y = (torch.linalg.vector_norm(tokens.double()).item() for tokens in (x, y))
    return lipschitz * x / y if y > 0 else math.nan


def one_head(f: Attention, head: int) -> Attention:
    """One head of an attention, with its part of the output matrix and without output bias."""
    group = head // (f.heads // f.groups)
    if f.joint_norm:  # a norm over all heads together: the others stay, with zero output
        output = f.output_matrices()
        alone = torch.zeros_like(output)
        alone[head] = output[head]
        return f.replace(output=alone, output_bias=None)
    parts = {}
    for name, tensor in f.tensors().items():
        if name not in ("frequencies", "output_bias"):
            place = group if name.startswith(("key", "value")) else head
            parts[name] = tensor[place : place + 1]
    return f.replace(**parts, output_bias=None)


def heads(reader: Reader, number: int, n: int, *, object: str, rtol: float, seed: int) -> list[dict]:
    """Rows of the heads of a layer at the first window, each measured alone with its part of the output matrix."""
    model, read = reader.of("text", n)
    f, x = model.attention(number, object, n), read[number].received[:1]
    rows: list[dict] = []
    if not isinstance(f, Attention) or not self_check(model, number, read[number])[2]:
        return rows
    for head in range(f.heads):
        with tried(rows, f"head {head} of layer {number} at n = {n}"):
            solved = _solved(one_head(f, head), x, rtol, seed)
            kept = {name: solved[name] for name in ("lipschitz", "relative", "converged")}
            place = {"layer": number, "length": n, "head": head}
            rows.append(place | {"shares_keys_with": head // (f.heads // f.groups)} | kept)
    if all(GAP in row and row["reason"] == rows[0]["reason"] for row in rows):
        return [rows[0] | {GAP: f"all heads of layer {number} at n = {n}"}]
    return rows


def tokens(reader: Reader, number: int, n: int, *, object: str, rtol: float, seed: int) -> list[dict]:
    """Rows of the tokens of the first window: how far each moves the others, and its part of the steepest change.

    Without a closed form, automatic differentiation always gives the steepest change. It gives how far each token moves
    the others only if `block_work` is small enough; otherwise these columns are NaN.
    """
    model, read = reader.of("text", n)
    f, x = model.attention(number, object, n), _input(read[number], object)[0]
    if not self_check(model, number, read[number])[2]:
        return []
    pair = singular_pair(f, x, rtol=rtol, seed=seed)
    rows = [
        {
            "layer": number,
            "length": n,
            "place": place,
            **_word(model, reader.inputs[n], place),
            "radius": torch.linalg.vector_norm(x[place].double()).item(),
            **dict.fromkeys(MAPPED, math.nan),
            "in_steepest": pair.moving[place].item(),
            "out_steepest": pair.moved[place].item(),
        }
        for place in range(len(x))
    ]
    if block_work(f, n) > PAIRS:
        return rows
    norms = block_norms(f, x, seed=seed).double()
    if not norms.isfinite().all():
        raise FloatingPointError("a block of the Jacobian is NaN or infinite.")
    others = norms - norms.diag().diag()
    for place, row in enumerate(rows):
        row |= {
            "own": norms[place, place].item(),
            "moves": torch.linalg.vector_norm(others[:, place]).item(),
            "moves_most": int(others[:, place].argmax()),
            "moved": torch.linalg.vector_norm(others[place]).item(),
            "moved_most_by": int(others[place].argmax()),
        }
    return rows


def block_work(f: Callable, n: int) -> float:
    """Rough number of operations for the norms of all blocks by automatic differentiation; 0 in closed form."""
    if isinstance(f, Attention):
        return 0.0
    inner: Any = getattr(f, "attention", f)  # the attention inside a block
    weights = sum(one.numel() for one in inner.tensors().values())
    return 4.0 * weights * n * n * inner.width  # a reverse pass for each entry of the output


def _word(model, inputs, place):
    """A token as in the vocabulary and, in quotes, as a reader would write it; a part of an image by its position."""
    if model.tokenizer is None or inputs.ndim != 2:
        return {"token": f"#{place}", "written": f"#{place}"}
    number = int(inputs[0, place])
    token = str(model.tokenizer.convert_ids_to_tokens(number))
    return {"token": token, "written": repr(decoded(model.tokenizer, number))}


def layer(reader: Reader, number: int, n: int, *, seed: int) -> list[dict]:
    """Row of a whole layer, with residual, norms and MLP, at the first window."""
    _, read = reader.of("first", n)
    x, whole = read[number].stream, read[number].whole
    return [_row(whole, x, "layer", number, n, seed, True)]


def network(reader: Reader, n: int, to: str, *, seed: int) -> list[dict]:
    """Row of the network from the input of its first layer to its last layer, last hidden states or logits.

    No row for the last layer if its output equals the last hidden states.
    """
    model, read = reader.of("first", n)
    inputs, x = reader.inputs[n][:1], read[0].stream
    f = _to_last_layer(model, inputs) if to == "layers" else whole_network(model, inputs, to)
    if to == "layers" and _alike(f(x), whole_network(model, inputs)(x)):
        return []
    return [_row(f, x, to, -1, n, seed, to != "logits" and _alike(f(x), _composed(read, x)))]


def _to_last_layer(model, inputs):
    """The network as a map to the output of its last layer, before a norm or anything else that follows."""
    whole, last = whole_network(model, inputs), model.architecture.layers_of(model.module)[-1]

    def stack(x):
        with capture(last) as calls:
            whole(x)
        return calls[-1].given  # a module that layers share gives several outputs

    return stack


@torch.no_grad()
def _composed(read, x):
    """Composition of the layers, from the first one's tokens."""
    for one in read:
        x = one.whole(x)
    return x


def _alike(y, z):
    """Whether two outputs agree up to rounding, and so are of the same map."""
    return bool(y.shape == z.shape and (y - z).abs().max() <= ROUGH * z.abs().max())


def _row(f, x, part, number, n, seed, composed):
    return {"part": part, "composed": composed, "layer": number, "length": n, **_solved(f, x, ROUGH, seed)}
