"""Training of language models: seeded, resumable, one row of metrics for each evaluation."""

import math
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from lipscan.recording.files import replacing

__all__ = ["SCHEDULES", "batch_of", "fast_precision", "token_losses", "train", "validation_loss"]


def _cosine(step, warmup, steps):
    """Cosine schedule of the rate: up to 1, then down to a twentieth."""
    if step < warmup:
        return step / warmup
    return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


SCHEDULES = {
    "constant": lambda step, warmup, steps: 1.0,
    "inverse_sqrt": lambda step, warmup, steps: min(step / max(1, warmup), math.sqrt(max(1, warmup) / step)),
    "cosine": _cosine,
}
EVALUATION_TOKENS = 8192  # in one forward pass


def fast_precision():
    """Fastest precision on this processor: "bfloat16" if it multiplies in it natively, else "float32"."""
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


def batch_of(token_ids, batch, length, seed, step):
    """Random windows of one step, a function of seed and step alone: inputs and next tokens, (b, n) each."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(token_ids) - length, (batch,), generator=generator)
    windows = token_ids[starts[:, None] + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


def _loss(network, inputs, targets, precision):
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = network(inputs)
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def validation_loss(network, token_ids, length, precision="float32"):
    """Mean cross entropy of the next token over all whole windows of a text, which never overlap.

    Parameters
    ----------
    network : torch.nn.Module
        Maps token ids (b, n) to logits (b, n, vocabulary).
    token_ids : LongTensor, shape (t,)
        At least `length` + 1 tokens.
    length : int
        Tokens in a window.
    precision : {"float32", "bfloat16"}
        Precision of the forward pass.

    Returns
    -------
    float
        Nats per token.
    """
    return token_losses(network, token_ids, length, precision).mean().item()


@torch.no_grad()
def token_losses(network, token_ids, length, precision="float32"):
    """Cross entropy of each next token, of which `validation_loss` is the mean: Tensor, shape (windows, length).

    The token after position p of a window (from 0) is predicted from the p + 1 tokens up to that position.
    """
    count = (len(token_ids) - 1) // length
    inputs = token_ids[: count * length].view(count, length)
    targets = token_ids[1 : count * length + 1].view(count, length)
    network.eval()
    losses = []
    for part in torch.arange(count).split(max(1, EVALUATION_TOKENS // length)):
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = network(inputs[part])
        losses.append(cross_entropy(logits.mT.float(), targets[part], reduction="none").double())
    network.train()
    return torch.cat(losses)


def train(
    network,
    training,
    validation,
    record,
    *,
    state,
    steps,
    batch,
    length,
    rate,
    warmup=100,
    schedule="cosine",
    decay=0.1,
    clip=1.0,
    betas=(0.9, 0.95),
    evaluate_every=50,
    seed=0,
    precision="float32",
    progress=True,
    on_divergence="raise",
    at_evaluation=None,
):
    """Train a network on the next token, by AdamW; a killed run continues where it was.

    Parameters
    ----------
    network : torch.nn.Module
        Maps token ids (b, n) to logits (b, n, vocabulary); trained in place.
    training, validation : LongTensor, shape (t,)
        Training and validation tokens, each more than `length`.
    record : lipscan.recording.Recording
        Gets one row for each evaluation: step, tokens, rate, training_loss (mean since the evaluation before),
        validation_loss, in nats per token.
    state : path
        File that holds weights and optimizer between evaluations; removed at the end.
    steps, batch, length : int
        Steps, windows in a step, tokens in a window.
    rate : float
        Largest step size.
    warmup : int
        Steps until it is reached; with 0 (or 1 for "inverse_sqrt") training starts with it.
    schedule : {"cosine", "inverse_sqrt", "constant"}
        Change of the rate after the warm-up.
    decay : float
        Weight decay of matrices; biases and gains have none. With 0 this is Adam.
    clip : float
        Largest gradient norm; math.inf for no clipping.
    betas : tuple of float
        Memory of the two averages of Adam.
    evaluate_every : int
        Steps between evaluations, at which the state is also saved.
    seed : int
        Seed of the windows. The network's weights are the caller's.
    precision : {"float32", "bfloat16"}
        Precision of products; weights and sums stay float32.
    progress : bool
        Whether to show a progress bar.
    on_divergence : {"raise", "record"}
        Reaction to a loss that is not finite: raise, or end the run with a row whose losses are NaN.
    at_evaluation : callable, optional
        Called with the step after each evaluation, before the state is saved.

    Returns
    -------
    float
        The last validation loss; NaN for a diverged run with `on_divergence` = "record".

    Raises
    ------
    ValueError
        The text is too short, `schedule` is unknown, or `warmup` is negative.
    FloatingPointError
        The loss is not finite.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}.")
    if warmup < 0:
        raise ValueError(f"warmup must be at least 0, got {warmup}.")
    for ids, part in ((training, "training"), (validation, "validation")):
        if len(ids) <= length:
            raise ValueError(
                f"the {part} text has {len(ids)} tokens: windows of {length} need more; give a longer "
                "text or a smaller length."
            )
    matrices = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0}], lr=rate, betas=betas
    )
    state = Path(state)
    first, row = _restore(state, network, optimizer)
    if row and record.rows(f"step {first}") is None:  # killed between the two writes
        record.add(f"step {first}", [row], 0.0)
    network.train()
    losses, began = [], time.perf_counter()
    bar = tqdm(range(first + 1, steps + 1), initial=first, total=steps, unit="step", disable=not progress)
    for step in bar:
        now = rate * SCHEDULES[schedule](step, warmup, steps)
        for group in optimizer.param_groups:
            group["lr"] = now
        loss = _loss(network, *batch_of(training, batch, length, seed, step), precision)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            if on_divergence == "record":
                row = {
                    "step": step,
                    "tokens": step * batch * length,
                    "rate": now,
                    "training_loss": math.nan,
                    "validation_loss": math.nan,
                }
                record.add(f"step {step}", [row], time.perf_counter() - began)
                break
            raise FloatingPointError(f"the loss is not finite after {step} steps: take a smaller rate.")
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        if step % evaluate_every == 0 or step == steps:
            row = {
                "step": step,
                "tokens": step * batch * length,
                "rate": now,
                "training_loss": sum(losses) / len(losses),
                "validation_loss": validation_loss(network, validation, length, precision),
            }
            if at_evaluation is not None:
                at_evaluation(step)
            _keep(state, network, optimizer, step, row)
            record.add(f"step {step}", [row], time.perf_counter() - began)
            losses, began = [], time.perf_counter()
            bar.set_description(f"validation {row['validation_loss']:.3f}")
    network.eval()
    state.unlink(missing_ok=True)
    return row["validation_loss"]


def _keep(path, network, optimizer, step, row):
    """Replace the saved state atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "row": row}
    with replacing(path) as (new,):
        torch.save(state, new)


def _restore(path, network, optimizer):
    """Restore a saved state; returns the step at which it was saved, 0 without one, and its row of metrics."""
    if not path.is_file():
        return 0, None
    kept = torch.load(path, weights_only=True)
    network.load_state_dict(kept["network"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["step"], kept["row"]
