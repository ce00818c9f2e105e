"""A new GPT-2 of any size to train, and the loading of a trained one; `lipnb.models.save_gpt2` writes it."""

import os
from pathlib import Path

import torch

from lipscan.models.config_checks import check_weights
from lipscan.models.files import quiet

__all__ = ["NextToken", "load_gpt2", "new_gpt2"]


class NextToken(torch.nn.Module):
    """A language model as a map from token ids (b, n) to logits (b, n, vocabulary)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, token_ids):
        """Logits of the next token."""
        return self.model(input_ids=token_ids, use_cache=False).logits


def new_gpt2(
    vocabulary: int, *, positions: int, width: int, layers: int, heads: int, end: int = 0, seed: int = 0
) -> NextToken:
    """A GPT-2 with random weights: learned positions, LayerNorm first, output tied to the token embedding.

    Parameters
    ----------
    vocabulary, positions : int
        Number of token ids, and length of the longest sequence.
    width, layers, heads : int
        Sizes: d, number of layers, heads in each.
    end : int
        Id of the token that ends a text.
    seed : int
        Seed of the weights. The global random state is not changed.

    Returns
    -------
    NextToken
        Maps token ids (b, n) to logits (b, n, vocabulary), without dropout.
    """
    with quiet(), torch.random.fork_rng(devices=[]):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=positions,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            bos_token_id=end,
            eos_token_id=end,
            # GPT-2's tanh form, in one fused step
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        torch.default_generator.manual_seed(seed)
        return NextToken(GPT2LMHeadModel._from_config(config, attn_implementation="sdpa"))


def load_gpt2(folder: str | os.PathLike) -> NextToken:
    """The complete language model of a checkpoint written by `save_gpt2`: NextToken, float32, in evaluation mode."""
    with quiet():
        from transformers import GPT2LMHeadModel

        check_weights(folder, Path(folder).name)
        model = GPT2LMHeadModel.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    return NextToken(model.eval().requires_grad_(False))
