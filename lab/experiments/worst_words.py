"""Tables of worst words: how far greedily substituted words move a layer of MiniLM toward its worst input.

The searches start from a window of Alice, and from one word repeated: at a fork, too, most tokens are equal.
"""

from typing import NamedTuple

import torch

from lab.experiments import adversarial
from lab.experiments.table import table
from lab.experiments.worst_inputs import CORPUS, LENGTH, WINDOWS
from lipnb import AttentionJacobian
from lipnb.lipschitz import local_lipschitz
from lipnb.worst_case.ascent import unit_slope
from lipnb.worst_case.attacks import length, singular
from lipscan import corpora, models
from lipscan.models.hooks import capture

MODEL = "minilm"
COUNTS = (0, 1, 2, 5, 10, 20, 40)  # changed words
TRIED = 16  # substitutions measured at each step
REFINED = 3  # power steps from the last singular vectors, for each of those
RANDOM = 5  # texts of random words; their median is stored
REPEATED, FEW = 8, 10  # words drawn, of which the roughest is repeated; most words changed then
SETTINGS = {"model": MODEL, "length": LENGTH, "tried": TRIED, "refined": REFINED, "dtype": "float64"}


class Text(NamedTuple):
    """A window of a text, and the layer whose constant its words are to increase.

    `layer`: index from 0. `ids` (n,): its token ids. `words` (vocabulary,): tokens that may occur in it, see
    `read_back`.
    """

    model: models.Model
    layer: int
    ids: torch.Tensor
    words: torch.Tensor

    def received(self, ids):
        """Input of the layer for token ids (b, n), shape (b, n, d)."""
        return self.model.activations(ids, self.layer)

    def places(self):
        """Positions that may change, shape (n,): whole words, so that the changed text is read as these tokens."""
        pieces = self.model.tokenizer.convert_ids_to_tokens(self.ids.tolist())
        goes_on = torch.tensor([piece.startswith("##") for piece in (*pieces[1:], "")])
        return self.words[self.ids] & ~goes_on


def read_back(model):
    """Mask of the tokens that are words: read alone, each gives itself; no pieces of words, no special tokens.

    Returns (vocabulary,).
    """
    tokens = [model.tokenizer.decode([i]) for i in range(model.module.config.vocab_size)]
    read = model.tokenizer(tokens, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return torch.tensor([ids == [i] for i, ids in enumerate(read)])


def text_at(layer, window=0):
    """One of the windows of Alice before a layer of MiniLM whose longest token is the radius in `worst-layers`."""
    model = adversarial.network_of(MODEL, False)
    tokens = models.first_tokens(model, corpora.read(CORPUS), LENGTH * WINDOWS)
    return Text(model, layer, corpora.windows(tokens, LENGTH, WINDOWS)[window], read_back(model))


def below(model, layer, embeddings):
    """Input of the attention of a layer for word embeddings (b, n, d), shape (b, n, d), differentiable.

    Positions are added and the layers below are applied, as in the network itself.
    """
    with capture(before=(model.architecture.receiver(model.module, layer, "heads+output"), 0)) as calls:
        model.module(inputs_embeds=embeddings, use_cache=False)
    return calls[0].tokens


def first_order(text, attention, ids, left, right):
    r"""First-order gain of each substitution, for one singular pair (w, v) of the layer at the text.

    .. math:: g_i \cdot (E_t - E_{x_i}), \qquad g = \nabla_E\, \langle w,\, D_X f\, v \rangle \quad (w, v \text{ held}),

    with word embeddings E, and X the layer's input as a function of them.

    `ids` (n,): current token ids. `left`, `right` (n, m) and (n, d): singular vectors w and v of length 1. Returns (n,
    vocabulary).
    """
    table = text.model.module.embeddings.word_embeddings.weight.detach()
    e = table[ids].requires_grad_()
    x = below(text.model, text.layer, e[None])[0]
    (pulled,) = torch.autograd.grad((attention(x) * left).sum(), x, create_graph=True)
    (slopes,) = torch.autograd.grad((pulled * right).sum(), e)
    return slopes @ table.mT - (slopes * table[ids]).sum(-1, keepdim=True)


@torch.no_grad()
def _refined(attention, x, left, steps):
    """Norms of the pulled-back left vectors, at most the constants of x (b, n, d), and both vectors."""
    jacobian, left = AttentionJacobian(attention, x), left.expand(len(x), *left.shape[-2:])
    for _ in range(steps):
        left = unit_slope(jacobian.jvp(unit_slope(jacobian.vjp(left), (-2, -1))), (-2, -1))
    right = jacobian.vjp(left)
    return length(right), left, unit_slope(right, (-2, -1))


def greedy(text, most, *, tried=TRIED):
    """Substitute words one by one; of the most promising ones, each step takes the one that makes the layer roughest.

    Roughness is compared by a few power steps from the singular vectors of the text before: a lower bound on each
    constant, which may miss a substitution that makes another direction the roughest.

    `most`: most words to change, each once. `tried`: substitutions measured for each change: the best to first order
    at each of that many positions. Returns position and token id of each change, in order; fewer than `most` if
    nothing tried gains.
    """
    attention, ids, free = text.model.attention(text.layer), text.ids.clone(), text.places()
    x = text.received(ids[None])
    right = singular(attention, x[0]).direction
    value, left, right = _refined(attention, x, AttentionJacobian(attention, x).jvp(right[None]), 1)
    changes = []
    for _ in range(min(most, int(free.sum()))):
        gains = first_order(text, attention, ids, left[0], right[0])
        gains[~free], gains[:, ~text.words] = -torch.inf, -torch.inf
        gains, words = gains.max(1)
        places = gains.topk(min(tried, int(free.sum()))).indices
        candidates = ids.repeat(len(places), 1)
        candidates[range(len(places)), places] = words[places]
        values, lefts, rights = _refined(attention, text.received(candidates), left, REFINED)
        best = values.argmax()
        if values[best] <= value:
            break
        value, left, right, ids = values[best], lefts[best, None], rights[best, None], candidates[best]
        free[places[best]] = False
        changes.append((places[best].item(), words[places[best]].item()))
    return changes


def _random(text, most, seed):
    """`most` changes: random words at random positions, each position once."""
    generator = torch.Generator().manual_seed(seed)
    places, words = text.places().nonzero().flatten(), text.words.nonzero().flatten()
    places = places[torch.randperm(len(places), generator=generator)[:most]]
    tokens = words[torch.randint(len(words), (len(places),), generator=generator)]
    return list(zip(places.tolist(), tokens.tolist(), strict=True))


def _substituted(ids, changes):
    ids = ids.clone()
    for place, token in changes:
        ids[place] = token
    return ids


def _constants(text, ids):
    """Local constants of the layer at token ids (b, n)."""
    return local_lipschitz(text.model.attention(text.layer), text.received(ids)).value


def text_of(row):
    """The greedily changed text of a stored row of either table."""
    text = text_at(row["layer"], row.get("window", 0))
    if "word" in row:
        text = text._replace(ids=torch.full_like(text.ids, row["word"]))
    changes = row["changes"].split() if row["changed"] else []
    return text._replace(ids=_substituted(text.ids, [map(int, change.split(":")) for change in changes]))


def again(row):
    """The constant at the greedily changed text of a stored row, measured again; for `lipscan.recording.remeasure`."""
    text = text_of(row)
    return {"greedy": _constants(text, text.ids[None]).item()}


def _layers():
    return [(MODEL, layer) for layer in range(adversarial.layers_of(MODEL, False))]


@table(
    "worst-words",
    "how far greedily substituted words move each layer of MiniLM toward its worst input",
    over=_layers,
    size=len(COUNTS),
    settings=lambda: (
        SETTINGS
        | {"corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS)), "counts": COUNTS, "random": RANDOM}
    ),
)
def word_rows(model, layer, *, seed=0):
    """Rows of one layer: after given numbers of words changed in its first window, greedily and at random."""
    text = text_at(layer)
    changes = greedy(text, max(COUNTS))
    counts = sorted({min(count, len(changes)) for count in COUNTS})
    controls = [_random(text, max(counts), seed + i) for i in range(RANDOM)]
    ids = torch.stack([_substituted(text.ids, made[:count]) for made in controls for count in counts])
    random = _constants(text, ids).view(RANDOM, -1).median(0).values.tolist()
    at = {"masked": False, "window": 0, "length": len(text.ids)}
    return [at | row | {"random": value} for row, value in zip(_path(text, changes, counts), random, strict=True)]


@table(
    "worst-repeats",
    "how far words move layers of MiniLM toward their worst inputs, from one word repeated",
    over=_layers,
    size=FEW + 1,
    settings=SETTINGS | {"repeated": REPEATED, "few": FEW},
)
def repeated_rows(model, layer, *, seed=0):
    """Rows of one layer: the roughest of some words, repeated, after each of the words changed in it."""
    text, generator = text_at(layer), torch.Generator().manual_seed(seed)
    words = text.words.nonzero().flatten()
    ids = words[torch.randint(len(words), (REPEATED, 1), generator=generator)].repeat(1, len(text.ids))
    text = text._replace(ids=ids[_constants(text, ids).argmax()])
    changes = greedy(text, FEW)
    at = {"masked": False, "length": len(text.ids), "word": text.ids[0].item()}
    return [at | row for row in _path(text, changes, range(len(changes) + 1))]


def _path(text, changes, counts):
    """Stored rows of a text, one for each count: after that many of its changes."""
    ids = torch.stack([_substituted(text.ids, changes[:count]) for count in counts])
    radii, constants = text.received(ids).norm(dim=-1).amax(-1), _constants(text, ids)
    return [
        {
            "changed": count,
            "greedy": constant.item(),
            "radius": radius.item(),
            "changes": " ".join(f"{place}:{token}" for place, token in changes[:count]),
        }
        for count, constant, radius in zip(counts, constants, radii, strict=True)
    ]
