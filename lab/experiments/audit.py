"""Tables of the audit: the defined and the released quantity, on the same inputs, one difference at a time."""

from functools import lru_cache

import torch

from lab import released
from lab.experiments.loading import edition, load
from lab.experiments.table import by_window, table
from lab.experiments.two_clusters import cluster_constants, cluster_input, head_of
from lipnb.lipschitz import local_lipschitz
from lipnb.worst_case import tight_input
from lipscan import corpora, models
from lipscan.models.hooks import capture
from lipscan.recording import Unit

__all__ = ["adversarial_row", "layer_row", "radius_rows", "random_ids", "received", "seed_rows", "text_rows"]

LENGTHS, SOME, ADVERSARIAL = tuple(range(2, 100, 2)), tuple(range(2, 100, 8)), tuple(range(2, 100, 5))
VOCABULARY = 50257  # token ids of GPT-2
LAYER, RATE = 6, 0.1  # of the random GPT-2: the measured layer, and its dropout
RULE = {"threshold": 1e-3, "most": 1000}  # as released for the random GPT-2
DEFINED = {"rtol": 1e-4, "seed": 0}


def _gpt2(seed=0, text="random"):
    return load("gpt2", random=True, seed=seed, tokenizer="minilm" if text == "random" else "gpt2")


def _minilm(masked):
    return load("minilm", masked=masked)


@torch.no_grad()
def received(model, token_ids, layer, *, token_types=False, dropout=False, seed=0):
    """Input of the attention of a GPT-2 layer, with two habits of the released scripts switched on or off.

    Parameters
    ----------
    model : lipnb.models.Model
        A GPT-2 model.
    token_ids : LongTensor, shape (b, n)
        Sequences of token ids.
    layer : int
        Layer, from 0.
    token_types : bool
        Whether to pass token types 0, for which GPT-2 adds the embedding of token 0 to every token.
    dropout : bool
        Whether to leave the network in training mode.
    seed : int
        Seed of the dropout. The global random state is not changed.

    Returns
    -------
    Tensor, shape (b, n, d)
        Equal to `model.activations` if both are off.
    """
    types = {"token_type_ids": torch.zeros_like(token_ids)} if token_types else {}
    model.module.train(dropout)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            capture(before=(model.architecture.receiver(model.module, layer, "heads+output"), 0)) as calls,
        ):
            torch.default_generator.manual_seed(seed)
            model.module(input_ids=token_ids, use_cache=False, **types)
    finally:
        model.module.eval()
    return calls[0].tokens


def random_ids(length, count, *, seed=0):
    """Uniformly random token ids of GPT-2, shape (count, length)."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(VOCABULARY, (count, length), generator=generator)


def _token_ids(text, length, count, *, seed=0):
    """Token ids of the audit's inputs, shape (count, length): "random", or windows of a text in GPT-2's tokens."""
    if text == "random":
        return random_ids(length, count, seed=seed)
    ids = models.first_tokens(_gpt2(seed, text), corpora.read(text), length * count)
    return corpora.windows(ids, length, count)


def _values(f, x, windows):
    """Defined and released values of some sequences, x of shape (b, n, d), and the result of the released loop."""
    alone = isinstance(f, released.DropoutAttention)  # its dropout masks are for one sequence, whatever the batch
    lip = local_lipschitz(f, x[0] if alone else x, **DEFINED)
    reported, norms = released.reported(f, x), x.double().norm(dim=-1)
    columns = {"radius": norms.amax(dim=-1), "mean_radius": norms.square().mean(dim=-1).sqrt()}
    columns |= {"lipschitz": lip.value.reshape(-1), "converged": lip.converged.reshape(-1), "released": reported}
    rows = by_window(columns)
    for one, window, row in zip(x, windows, rows, strict=True):
        looped = released.DropoutAttention(f.attention, rate=f.rate, seed=f.seed + 1, fresh=True) if alone else f
        loop = released.estimate(looped, one, **RULE, seed=1000 * len(one) + window)
        row |= {"window": window, "loop": loop.value, "loop_steps": loop.steps}
    return rows


def text_rows(text, length, windows, embedding, dropout, *, seed=0, count=10):
    """Rows of the table "released-text", measured now: windows of one length, solved together without dropout."""
    if dropout and len(windows) > 1:  # each has different dropout masks
        return [
            row
            for window in windows
            for row in text_rows(text, length, [window], embedding, True, seed=seed, count=count)
        ]
    model = _gpt2(seed, text)
    ids = _token_ids(text, length, count, seed=seed)[list(windows)]
    x = received(model, ids, LAYER, token_types=embedding == "token 0 added", dropout=dropout, seed=windows[0])
    f = model.attention(LAYER)
    if dropout:
        f = released.DropoutAttention(f, rate=RATE, seed=100_000 * windows[0])
    at = {"text": text, "embedding": embedding, "dropout": dropout, "length": length}
    return [at | {"edition": edition(tokens)} | row for tokens, row in zip(ids, _values(f, x, windows), strict=True)]


@table("released-text", "the released quantity beside the defined one: random GPT-2", told=("text", "length"))
def _text(texts=("random", "alice"), lengths=LENGTHS, count=10, seed=0):
    for text in texts:  # report an absent text before the first measurement
        _token_ids(text, max(lengths), count, seed=seed)

    def unit(text, length):
        variants = [(embedding, False, range(count)) for embedding in ("plain", "token 0 added")]
        if length in SOME:  # with dropout no closed form applies: fewer inputs
            variants.append(("token 0 added", True, range(min(4, count))))
        return Unit(
            f"{text}/{length}",
            lambda: [
                row
                for embedding, dropout, windows in variants
                for row in text_rows(text, length, windows, embedding, dropout, seed=seed, count=count)
            ],
            sum(len(windows) for *_, windows in variants),
        )

    settings = {"model": "gpt2, random", "layer": LAYER, "texts": texts, "lengths": lengths, "count": count}
    settings |= {"seed": seed, "dropout": RATE, **RULE, **DEFINED, "dtype": "float32"}
    return settings, [unit(text, length) for text in texts for length in lengths]


# (windows, tokens masked, map masked, layer, object) of MiniLM, which replaces BERT; windows "apart" share no token
LAYERS = (
    ("restart", False, False, 0, "heads"),
    ("restart", False, False, 0, "heads+output"),
    ("restart", False, False, 0, "block"),
    ("apart", False, False, 0, "heads+output"),
    ("restart", True, True, 3, "heads+output"),
    ("restart", True, False, 3, "heads+output"),
    ("restart", True, False, 3, "block"),
)
TEXT = "python_reference"


@table(
    "released-layers",
    "the released quantity on MiniLM, one difference at a time",
    over=lambda lengths, count: [(*one, n, window) for one in LAYERS for n in lengths for window in range(count)],
    settings=lambda: (
        {"model": "minilm", "text": corpora.fingerprint(corpora.read(TEXT)), "maps": LAYERS}
        | {**DEFINED, "dtype": "float32"}
    ),
    lengths=SOME,
    count=5,
)
def layer_row(windows, tokens_masked, map_masked, layer, object, length, window):
    """One row of the table "released-layers", measured now."""
    model = _minilm(tokens_masked)
    ids = _minilm_ids()
    if windows == "apart":  # continue in the text after the tokens of shorter lengths
        ids = ids[10 * sum(n for n in SOME if n < length) :]
    ids = corpora.windows(ids, length, window + 1)[window:]
    x, f = model.activations(ids, layer, object)[0], _minilm(map_masked).attention(layer, object)
    lip, norms = local_lipschitz(f, x, **DEFINED), x.double().norm(dim=-1)
    return {
        "edition": edition(ids),
        "radius": norms.max().item(),
        "mean_radius": norms.square().mean().sqrt().item(),
        "lipschitz": lip.value.item(),
        "converged": lip.converged.item(),
        "released": released.reported(f, x).item(),
    }


@lru_cache(maxsize=1)
def _minilm_ids():
    return _minilm(False).token_ids(corpora.read(TEXT))


# model, slicing of A, layer, head, object measured
WORST = (
    ("gpt2, random", "rows", 6, 0, "heads+output"),
    ("gpt2, random", "columns", 6, 0, "heads+output"),
    ("minilm", "columns", 0, 0, "heads"),
    ("minilm", "columns", 0, 0, "heads+output"),
    ("minilm", "columns", 3, 7, "heads"),
    ("minilm", "columns", 3, 7, "heads, keys, values"),
)
SEED = 320  # as released
RADII = {"gpt2, random": 100.0, "minilm": 15.5}  # as released, with MiniLM instead of BERT


def _of(model):
    return _minilm(False) if model == "minilm" else _gpt2(SEED)


@lru_cache(maxsize=len(WORST))
def _tight(model, cut, layer, head):
    """The largest useful number of adversarial tokens: all but the first are equal."""
    A = (released.row_matrix if cut == "rows" else released.head_matrix)(_of(model).attention(layer), head)
    return tight_input(A.double(), max(ADVERSARIAL), RADII[model]).float()


@table(
    "released-adversarial",
    "the released quantity on adversarial tokens",
    over=lambda lengths: [(*one, length) for one in WORST for length in lengths],
    settings={"maps": WORST, "seed": SEED, "radii": RADII, **DEFINED, "dtype": "float32"},
    lengths=ADVERSARIAL,
)
def adversarial_row(model, cut, layer, head, object, length):
    """One row of the table "released-adversarial", measured now."""
    x = _tight(model, cut, layer, head)[:length]
    f = _of(model).attention(layer, object.split(",")[0])
    f = released.with_keys_and_values(f) if "keys" in object else f
    lip = local_lipschitz(f, x, **DEFINED)
    return {
        "radius": RADII[model],
        "lipschitz": lip.value.item(),
        "converged": lip.converged.item(),
        "released": released.reported(f, x).item(),
    }


SEEDS, WINDOWS, TEXT_LENGTHS = (*range(10), SEED), 4, (8, 16, 32, 64, 98)
ALICE = "alice"


@table(
    "released-seeds",
    "both quantities in layer 6 of random GPT-2s, one for each seed: Alice, and adversarial tokens",
    over=SEEDS,
    size=WINDOWS * len(TEXT_LENGTHS) + 2 * len(ADVERSARIAL),
    settings=lambda: (
        {"model": "gpt2, random", "layer": LAYER, "text": corpora.fingerprint(corpora.read(ALICE))}
        | {"text_lengths": TEXT_LENGTHS, "windows": WINDOWS, "lengths": ADVERSARIAL, "radius": RADII["gpt2, random"]}
        | {**DEFINED, "dtype": "float32"}
    ),
)
def seed_rows(seed):
    """Rows of one random GPT-2: windows of Alice at random positions with token types, and both slicings of head 0."""
    model, rows = _gpt2(seed, ALICE), []
    f = model.attention(LAYER)
    for n in TEXT_LENGTHS:
        ids = models.random_windows(model, corpora.read(ALICE), n, WINDOWS, seed=n)
        x = received(model, ids, LAYER, token_types=True)
        lip = local_lipschitz(f, x, **DEFINED)
        columns = {"lipschitz": lip.value, "converged": lip.converged, "released": released.reported(f, x)}
        rows += [{"input": "text", "length": n, **row} for row in by_window(columns)]
    for cut, matrix in (("rows", released.row_matrix), ("columns", released.head_matrix)):
        tokens = tight_input(matrix(f, 0).double(), max(ADVERSARIAL), RADII["gpt2, random"]).float()
        for n in ADVERSARIAL:
            lip = local_lipschitz(f, tokens[:n], **DEFINED)
            both = {"lipschitz": lip.value.item(), "converged": lip.converged.item()}
            both["released"] = released.reported(f, tokens[:n]).item()
            rows.append({"input": cut, "length": n, "window": 0, **both})
    return rows


SMALLER, RANGE = (3.0, 10.0, RADII["gpt2, random"]), (7, 12, 22, 47, 97)


@table(
    "released-radii",
    "layer 6 of random GPT-2s and head 0 alone, at tokens adversarial for that head, of three radii",
    over=SEEDS,
    size=len(SMALLER) * len(RANGE),
    settings={"model": "gpt2, random", "layer": LAYER, "radii": SMALLER, "lengths": RANGE}
    | {**DEFINED, "dtype": "float64"},
)
def radius_rows(seed):
    """Rows of one random GPT-2: its layer at the tokens of the true head 0, and that head alone."""
    f = _gpt2(seed).attention(LAYER).to(dtype=torch.float64)
    head, rows = head_of(f, 0), []
    for R in SMALLER:
        alone = cluster_constants(head, RANGE, R).tolist()
        for n, of_head in zip(RANGE, alone, strict=True):
            lip = local_lipschitz(f, cluster_input(head, n, R), **DEFINED)
            rows.append({"radius": R, "length": n, "lipschitz": lip.value.item(), "converged": lip.converged.item()})
            rows[-1] |= {"head_alone": of_head}
    return rows
