"""Logits of rotary attention depend on distances alone."""

from cases import drawn, relative

from lipnb import Attention


def test_logits_of_rotary_attention_depend_on_distances_alone():
    draw = drawn(0)
    given = {"query": draw(2, 6, 5), "key": draw(1, 6, 5), "value": draw(1, 6, 5)}
    f = Attention(**given, masked=True, window=4, frequencies=draw(2).double())
    x = draw(9, 5)
    assert relative(f(x)[5:], f(x[1:])[4:]) < 1e-12
    assert relative(f(x)[5:], Attention(**given, masked=True, window=4)(x)[5:]) > 1e-3
