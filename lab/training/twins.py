"""Small GPT-2 networks that differ only in their positions: learned, none, or rotary."""

import torch

from lab.training.gpt2 import NextToken, new_gpt2
from lipscan.models.files import quiet

__all__ = ["KINDS", "new_twin"]

KINDS = ("learned", "none", "rotary")


def new_twin(
    positions: str, vocabulary: int, *, length: int, width: int, layers: int, heads: int, seed: int = 0
) -> NextToken:
    """A new language model with the initial weights of a GPT-2 with this seed, and positions of one kind.

    "learned" is that GPT-2. Without positions ("none") its position embeddings are zero and stay zero. "rotary" is a
    GPT-NeoX of the same layers (sequential residual, LayerNorm first, the same GELU, the output tied to the embedding)
    whose queries and keys are rotated by position; without rotation it computes the same as "none".

    Parameters
    ----------
    positions : {"learned", "none", "rotary"}
        Kind of positions.
    vocabulary, length : int
        Number of token ids, and length of the longest sequence.
    width, layers, heads : int
        d, depth and h.
    seed : int
        Seed of the weights. The global random state is not changed.

    Returns
    -------
    NextToken
        Maps token ids (b, n) to logits (b, n, vocabulary), without dropout.

    Raises
    ------
    ValueError
        `positions` is unknown.

    Examples
    --------
    >>> from lab.training.twins import new_twin
    >>> sizes = {"length": 8, "width": 8, "layers": 1, "heads": 2}
    >>> new_twin("rotary", 16, **sizes)(torch.zeros(1, 4, dtype=torch.long)).shape
    torch.Size([1, 4, 16])
    """
    if positions not in KINDS:
        raise ValueError(f"positions must be one of {', '.join(KINDS)}, got {positions!r}.")
    network = new_gpt2(vocabulary, positions=length, width=width, layers=layers, heads=heads, seed=seed)
    if positions == "learned":
        return network
    places = network.model.transformer.wpe.weight.requires_grad_(False)
    places.zero_()
    return network if positions == "none" else NextToken(_rotary(network.model))


@torch.no_grad()
def _rotary(gpt2):
    """A GPT-NeoX with the weights of a GPT-2, without its position embeddings."""
    said = gpt2.config
    with quiet(), torch.random.fork_rng(devices=[]):
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

        config = GPTNeoXConfig(
            vocab_size=said.vocab_size,
            hidden_size=said.n_embd,
            num_hidden_layers=said.n_layer,
            num_attention_heads=said.n_head,
            intermediate_size=4 * said.n_embd,
            hidden_act=said.activation_function,
            max_position_embeddings=said.n_positions,
            layer_norm_eps=said.layer_norm_epsilon,
            use_parallel_residual=False,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
        )
        model = GPTNeoXForCausalLM._from_config(config, attn_implementation="sdpa")
    model.gpt_neox.embed_in.weight.copy_(gpt2.transformer.wte.weight)
    model.gpt_neox.final_layer_norm.load_state_dict(gpt2.transformer.ln_f.state_dict())
    for mine, theirs in zip(model.gpt_neox.layers, gpt2.transformer.h, strict=True):
        mine.input_layernorm.load_state_dict(theirs.ln_1.state_dict())
        mine.post_attention_layernorm.load_state_dict(theirs.ln_2.state_dict())
        # GPT-2's rows: all queries, all keys, all values; GPT-NeoX's: query, key and value of each head
        by_head = (3, said.n_head, said.n_embd // said.n_head)
        weight, bias = theirs.attn.c_attn.weight.T, theirs.attn.c_attn.bias
        mine.attention.query_key_value.weight.copy_(weight.unflatten(0, by_head).transpose(0, 1).flatten(0, 2))
        mine.attention.query_key_value.bias.copy_(bias.unflatten(0, by_head).transpose(0, 1).flatten())
        for linear, of_gpt2 in (
            (mine.attention.dense, theirs.attn.c_proj),
            (mine.mlp.dense_h_to_4h, theirs.mlp.c_fc),
            (mine.mlp.dense_4h_to_h, theirs.mlp.c_proj),
        ):
            linear.weight.copy_(of_gpt2.weight.T)
            linear.bias.copy_(of_gpt2.bias)
    return model
