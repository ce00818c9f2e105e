"""The registry of figures that stored tables are enough for: each has one name and one function."""

from collections.abc import Callable
from dataclasses import dataclass

from lab import results
from lab.figures import (
    adversarial,
    kv_rounding,
    l2,
    positions,
    real_text,
    released,
    robustness,
    speed,
    token_sinks,
    training,
    twins,
    verified,
    zoo,
)

__all__ = ["FIGURES", "BookFigure"]


@dataclass(frozen=True)
class BookFigure:
    """A figure of the book that can be drawn from stored tables.

    Attributes
    ----------
    name : str
        By which it is asked for, and of its file.
    page : str
        The page that shows it, as ``41_real_text``.
    tables : tuple of str
        Stored tables that it needs, in the order in which `function` takes them.
    function : callable
        Takes the tables, gives a matplotlib Figure. The page calls the same one.
    about : str
        What it shows, in a few words.
    live : str
        What the page adds to it from measurements of its own.
    """

    name: str
    page: str
    tables: tuple[str, ...]
    function: Callable
    about: str
    live: str = ""

    @property
    def call(self):
        """How its page calls the function that draws it."""
        return f"figures.{self.function.__module__.split('.')[-1]}.{self.function.__name__}("

    def missing(self):
        """Those of its tables that are not there."""
        return [name for name in self.tables if name not in results.names()]


FIGURES = {
    figure.name: figure
    for figure in (
        BookFigure(
            "token-sinks",
            "46_which_token_matters",
            ("token-sinks",),
            token_sinks.sinks,
            "how hard the first token pushes the others, with and without a special token, and in controls",
        ),
        BookFigure(
            "verification",
            "29_verification",
            ("verify",),
            verified.worst_cases,
            "the worst of many inputs against each upper bound",
        ),
        BookFigure(
            "real-text-jump",
            "43_why_it_grows",
            ("atlas-minilm",),
            real_text.jump,
            "MiniLM's first layer beyond the length of its training texts",
            "windows of a text, measured now",
        ),
        BookFigure(
            "adversarial-heads",
            "42_adversarial_inputs",
            ("adversarial", "adversarial-layers"),
            adversarial.worst_heads,
            "one head of a layer under attack, between its bounds",
        ),
        BookFigure(
            "adversarial-own",
            "42_adversarial_inputs",
            ("adversarial-worst", "adversarial-layers"),
            adversarial.own_worst,
            "how whole layers grow at their own worst inputs, and at controls",
        ),
        BookFigure(
            "scaling-factor",
            "42_adversarial_inputs",
            ("scaling-factor",),
            adversarial.scaling_factors,
            "2 gamma R^2 of every head, the logarithm of its window",
        ),
        BookFigure(
            "gpt2-mini-training",
            "44_gpt2_positions",
            ("gpt2-mini-training", "gpt2-mini-baselines"),
            positions.training,
            "the loss of gpt2-mini while it was trained, and that of n-grams",
        ),
        BookFigure(
            "gpt2-mini-places",
            "44_gpt2_positions",
            ("gpt2-mini-baselines",),
            positions.places,
            "loss by place in the window, of gpt2-mini and of n-grams",
        ),
        BookFigure(
            "twins",
            "47_trained_without",
            ("twins",),
            twins.slopes,
            "how the constant grows in twins with learned, no and rotary positions",
        ),
        BookFigure(
            "twins-while-training",
            "47_trained_without",
            ("twins",),
            twins.while_training,
            "the same growth at checkpoints of training, and the losses",
        ),
        BookFigure(
            "position-norms",
            "44_gpt2_positions",
            ("position-norms",),
            positions.norms,
            "norm of the learned position of each place",
        ),
        BookFigure(
            "positions",
            "44_gpt2_positions",
            ("positions",),
            positions.growth,
            "constants and norms with positions as trained and changed",
        ),
        BookFigure(
            "released-code",
            "45_released_code",
            ("released-text", "released-adversarial"),
            released.two_quantities,
            "what the released loop reports, beside the constant",
        ),
        BookFigure(
            "l2-exponents",
            "62_l2_attention",
            ("l2-bounds",),
            l2.bound_exponents,
            "L2 attention over its bounds with two exponents",
            "two tokens in width one",
        ),
        BookFigure(
            "l2-tightness",
            "63_l2_tightness",
            ("l2-tightness",),
            l2.tightness,
            "ascents of the row sum, the bound and the constant",
        ),
        BookFigure(
            "inversion-curves",
            "64_invertible_attention",
            ("inversion-curves",),
            l2.inversion,
            "error of the inverse against iterations",
        ),
        BookFigure(
            "language-model",
            "65_language_model",
            ("language-model",),
            training.losses,
            "losses of several kinds of attention by depth, with curves",
        ),
        BookFigure(
            "language-model-layers",
            "65_language_model",
            ("language-model",),
            training.constants,
            "local constants of the trained layers, below their bounds",
        ),
        BookFigure(
            "training-stability",
            "66_training_stability",
            ("training-stability", "training-controls"),
            training.stability,
            "which kinds still train at a fixed rate, by depth",
        ),
        BookFigure(
            "training-factorial",
            "66_training_stability",
            ("training-factorial",),
            training.factorial,
            "the loss by kind of attention, start and place of LayerNorm",
        ),
        BookFigure(
            "training-layers",
            "66_training_stability",
            ("training-stability",),
            training.trained_layers,
            "constants of the trained layers, and the spread they pass on",
        ),
        BookFigure(
            "zoo-text",
            "71_every_bound",
            ("zoo-text",),
            zoo.at_text,
            "all bounds of one layer of MiniLM against the length of its text",
        ),
        BookFigure(
            "zoo-growth",
            "71_every_bound",
            ("zoo-growth",),
            zoo.at_worst,
            "bounds of one head over its constant, by length and radius",
        ),
        BookFigure(
            "brackets",
            "72_certified_bracket",
            ("bracket-minilm", "bracket-gpt2"),
            verified.brackets,
            "certified brackets of every layer, below published bounds",
        ),
        BookFigure(
            "robustness-attacks",
            "75_robustness",
            ("robustness",),
            robustness.attacks,
            "attacks and bounds over the first-order prediction",
        ),
        BookFigure(
            "robustness-ranks",
            "78_ranking_inputs",
            ("one-word",),
            robustness.ranks,
            "how far a vector and a word move every layer, against the relative constant",
        ),
        BookFigure(
            "kv-rounding",
            "80_kv_rounding",
            ("kv-rounding",),
            kv_rounding.ranks,
            "loss by rounding one layer's keys or values, against the constant and the change of the residual stream",
        ),
        BookFigure(
            "kv-rounding-depth",
            "80_kv_rounding",
            ("kv-rounding",),
            kv_rounding.depth,
            "constants, norms of the residual stream and loss by rounding, layer by layer",
        ),
        BookFigure(
            "solver-speed",
            "77_solver_speed",
            ("bench-workload",),
            speed.workload,
            "how fast each method is, and how often wrong",
        ),
    )
}
