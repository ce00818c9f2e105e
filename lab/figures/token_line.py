"""A line of text whose tokens show their share of a push and the move of their outputs, as HTML."""

from html import escape

import numpy as np


class TokenLine:
    """Tokens in the order of the text; a page shows it as its last line.

    The bar above each token is its share of the push, the bar below it the move of its output; each is drawn relative
    to the largest. The numbers are in the title of each token, shown under the pointer.

    `tokens`: as the tokenizer writes them. `share` (n,): squared shares of the push, with sum 1. `moved` (n,):
    distances that the outputs move.
    """

    def __init__(self, tokens, share, moved):
        self.tokens, self.share, self.moved = list(tokens), np.asarray(share, float), np.asarray(moved, float)
        if not self.share.shape == self.moved.shape == (len(self.tokens),):
            shapes = f"{self.share.shape} and {self.moved.shape}"
            raise ValueError(f"{len(self.tokens)} tokens need as many shares and moves, got shapes {shapes}.")

    def __repr__(self):
        return " ".join(f"{token} ({share:.0%})" for token, share in zip(self.tokens, self.share, strict=True))

    def _repr_html_(self):
        one = [self._token(*row) for row in zip(self.tokens, self.share, self.moved, strict=True)]
        return f'<p class="token-line">{" ".join(one)}</p>'

    def _token(self, token, share, moved):
        bars = (share / self.share.max(), moved / self.moved.max())
        above, below = (f'<i style="height:{1.6 * bar:.2f}em"></i>' for bar in bars)
        said = f"{share:.1%} of the push; its output moves by {moved:.2f}"
        return f'<span title="{said}"><b>{above}</b>{escape(token)}<u>{below}</u></span>'
