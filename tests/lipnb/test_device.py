"""What a GPU would run, on a device that is not there: nothing may mix devices, or read values back more than needed.

In a process of its own, `apart`: PyTorch's free backend, once it has a name, keeps it (`tests/pretend_device.py`).
"""

import math

import torch

from lipnb import Attention, AttentionJacobian, block_norms, bounds, certify, local_lipschitz, singular_pair, worst_case
from lipnb.jacobian.operators import operator_of
from lipnb.worst_case import attacks

N, D = 9, 8  # more unknowns than the dense method takes
READ = 3  # values read back in a step of any method and precision; what a solve reads once comes beside them
ONCE = 24


def drawn(seed=0):
    """Random tensors on the device, always the same."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).to("pretend")


def every_map(normal):
    """Attention of every kind, on the device: masks, biases, caps, rotations, norms, sinks, distances, shared keys."""
    query, key, value, output = normal(4, 4, D), normal(4, 4, D), normal(4, 4, D), normal(4, D, 4)
    plain, gains = Attention(query, key, value, output), normal(2, 4, 4)
    biases = {"query_bias": normal(4, 4), "key_bias": normal(4, 4), "value_bias": normal(4, 4)}
    return {
        "plain": plain,
        "masked": plain.replace(masked=True),
        "window": plain.replace(masked=True, window=3),
        "biased": plain.replace(**biases, output_bias=normal(D)),
        "capped": plain.replace(cap=2.0),
        "rotary": plain.replace(frequencies=torch.tensor([1.0, 0.1]).to("pretend"), masked=True),
        "normalised": plain.replace(query_norm=gains[0], key_norm=gains[1]),
        "sinks": plain.replace(sinks=normal(4)),
        "relative": plain.replace(relative=normal(4, 2 * N - 1)),
        "shared": Attention(query, key[:2], value[:2], output),
        "l2": Attention.l2(query, value, output),
    }


def on_device(*tensors):
    """Whether all of these lie there."""
    from pretend_device import DEVICE

    return all(one.device == DEVICE for one in tensors)


def _all_routes():
    from pretend_device import LOG, PretendDevice

    with PretendDevice():
        normal = drawn()
        x = normal(3, N, D) / 2
        weights = torch.rand(3, N, generator=torch.Generator().manual_seed(1)).double().add(0.1).to("pretend")
        every: tuple = ({"rtol": 1e-2}, {"rtol": 1e-2, "memory": 1})
        more: tuple = (
            {},
            {"method": "dense"},
            {"confidence": None},
            {"max_steps": 3},
            {"method": "power", "max_steps": 9},
        )
        more += ({"weights": weights}, {"weights": weights, "memory": 1})
        for name, f in every_map(normal).items():
            here, beside = f.to(device="cpu"), x.cpu()
            for options in every + more if name in ("plain", "rotary") else every:
                LOG.clear()
                lip, waits = local_lipschitz(f, x, **options), LOG["waits"]
                fields = (lip.value, lip.residual, lip.steps, lip.converged, lip.upper)
                assert on_device(*fields), (name, options)
                known = {key: one.cpu() if isinstance(one, torch.Tensor) else one for key, one in options.items()}
                same = local_lipschitz(here, beside, **known)
                assert lip.route == same.route and torch.equal(lip.steps.cpu(), same.steps), (name, options)
                assert torch.allclose(lip.value.cpu(), same.value, rtol=1e-9), (name, options)
                steps = same.steps.sum().item() if "memory" in options else same.steps.max().item()
                assert waits <= READ * steps + ONCE, (name, options, waits, steps)
            single = local_lipschitz(f.to(dtype=torch.float32), x.float(), rtol=1e-3)
            assert on_device(single.value) and single.value.dtype == torch.float64, name
            lengths = local_lipschitz(f, [x[0], x[1, :5], x[2]])
            assert on_device(lengths.value) and len(lengths.value) == 3, name


def test_every_route_of_every_kind_of_attention_stays_on_the_device(apart):
    apart(_all_routes)


def _few_reads():
    """Numbers read back for one product more, by route; and by Lanczos steps, from runs of two lengths."""
    from pretend_device import LOG, PretendDevice

    with PretendDevice():
        normal = drawn()
        x, wide = normal(2, 24, D) / 2, {"memory": 2**30, "dense": None}
        for name, f in every_map(normal).items():
            for options in (wide, {**wide, "memory": 1}, {**wide, "dense": True}):
                if name == "relative":
                    continue  # of fewer distances
                products = operator_of(f, x, None, **options)
                u = normal(2, x[0].numel())
                LOG.clear()
                products.gram(u)
                assert LOG["waits"] == 0, (name, products.name, LOG["waits"])
        particles = Attention(*normal(3, 1, 1, 2))
        products = operator_of(particles, normal(1, 4000, 2) / 3, None, memory=1, dense=None)
        u = normal(1, 8000)
        LOG.clear()
        products.gram(u)
        assert products.name == "separable" and LOG["waits"] == 0, LOG["waits"]
        f, x, reads = every_map(normal)["plain"], normal(1, 40, D), {}
        local_lipschitz(f, x, confidence=None, max_steps=1)  # later calls compare the map with what was kept of it
        for method in ("lanczos", "power"):
            for most in (5, 15):
                LOG.clear()
                lip = local_lipschitz(f, x, method=method, rtol=1e-13, confidence=None, max_steps=most)
                reads[method, most] = LOG["waits"] + LOG["sent"]
                assert lip.steps.item() == most, (method, most)
        return {method: (reads[method, 15] - reads[method, 5]) / 10 for method in ("lanczos", "power")}


def test_no_value_is_read_back_inside_a_product_and_few_in_a_step(apart):
    reads = apart(_few_reads)
    assert reads["lanczos"] <= 1 and reads["power"] <= READ, reads


def _certificates():
    from pretend_device import PretendDevice

    with PretendDevice():
        normal = drawn()
        x = normal(N, D) / 2
        for name, f in every_map(normal).items():
            pair, here = singular_pair(f, x), f.to(device="cpu")
            assert on_device(pair.value, pair.input, pair.output, pair.moving, pair.moved), name
            assert torch.allclose(pair.output.cpu(), singular_pair(here, x.cpu()).output, atol=1e-6), name
            norms = block_norms(f, x)
            assert on_device(norms) and torch.allclose(norms.cpu(), block_norms(here, x.cpu())), name
            J = AttentionJacobian(f, x)
            assert on_device(J.dense(), J.infinity_norm(), J.vjp(J.jvp(x)), J.gram(x)), name
            assert on_device(attacks.singular(f, x).direction), name
            if name == "l2":
                continue
            for columns in (None, 0) if name in ("plain", "rotary") else (0,):
                bracket, same = certify(f, x, columns=columns), certify(here, x.cpu(), columns=columns)
                assert torch.allclose(bracket.upper.cpu(), same.upper, rtol=1e-9), name
                assert torch.allclose(bracket.lower.cpu(), same.lower, rtol=1e-4), name
            gain = normal(D).abs()
            for ellipsoid in (None, (gain, None), (gain, normal(D) / 4)) if name in ("plain", "rotary") else (None,):
                there = None if ellipsoid is None else tuple(one if one is None else one.cpu() for one in ellipsoid)
                found = bounds.ball_upper(f, N, 2.0, ellipsoid=ellipsoid)
                assert math.isclose(found, bounds.ball_upper(here, N, 2.0, ellipsoid=there), rel_tol=1e-6), name


def test_certificates_pairs_and_blocks_take_maps_of_the_device(apart):
    apart(_certificates)


def _other_bounds():
    from pretend_device import PretendDevice

    with PretendDevice():
        normal = drawn()
        maps, x, A, V = every_map(normal), normal(N, D) / 2, normal(D, D) / 4, normal(D, D)
        plain, query, value, output = maps["plain"], normal(2, 4, D), normal(2, 4, D), normal(2, D, 4)
        norms, radii = bounds.head_norms(plain), torch.tensor([0.1, 0.2]).double().to("pretend")
        at_input = [
            *(getattr(bounds, name)(plain, x) for name in ("yudin_upper", "large_radius_limit", "chosen_tokens")),
            bounds.yudin.yudin_upper_sharp(plain, x),
            bounds.heads.max_token_terms(plain, x),
            *(bounds.column_upper(A, V, x, masked=masked) for masked in (False, True)),
            bounds.spread_upper(A, V, x),
            bounds.yudin.softmax_norm(torch.softmax(x[0], 0)),
            *(bounds.layer_norm.norm_layer_upper(x[0], 1e-5, tokens) for tokens in (None, x)),
            bounds.without_query_bias(maps["biased"], x, 1.0)[1],
            bounds.nearby_upper(plain, x, radii)[0],
        ]
        assert all(map(on_device, at_input)), [one.device for one in at_input]
        numbers = [
            *(getattr(bounds, name)(A, V, N, 2.0) for name in ("general_upper", "general_upper_sharp")),
            *(getattr(bounds, name)(A, V, 2.0) for name in ("mean_field_upper", "masked_mean_field_upper")),
            *(getattr(bounds, f"{name}_sharp")(A, V, 2.0) for name in ("mean_field_upper", "masked_mean_field_upper")),
            bounds.general_upper_optimal(A, V, N, 2.0),
            bounds.general_upper_exact(A, V, N, 2.0),
            bounds.general_lower(A + A.mT, N, 2.0),
            bounds.mean_field_lower(A + A.mT, 2.0),
            bounds.growth_rate(A + A.mT),
            bounds.biased_upper(A, V, N, 2.0, x[0]),
            bounds.multi_head_upper(output, [1.0, 2.0]),
            bounds.layer_norm_radius(x[0], x[1]),
            *(bounds.l2_upper(query, value, one, N, p) for one in (None, output) for p in (2, math.inf)),
            *(bounds.l2_upper_sharp(query, value, one, N) for one in (None, output)),
            bounds.printed_l2_upper(query, value, output, N),
            *bounds.heads_on_ball(norms, N, 2.0, False).values(),
            *bounds.heads.heads_at_input(plain, norms, x).values(),
            bounds.max_token_upper(plain, 2.0),
            bounds.rotary_upper(maps["rotary"], N, 2.0),
            bounds.rotary_terms(maps["rotary"], x),
        ]
        assert all(isinstance(one, float) and one > 0 for one in numbers), numbers


def test_every_bound_takes_tensors_of_the_device(apart):
    apart(_other_bounds)


def _worst_inputs():
    from pretend_device import PretendDevice

    with PretendDevice():
        normal = drawn()
        A, V, u = normal(4, 4), normal(4, 4), normal(4)
        A = A + A.mT
        f = Attention(normal(2, 2, 4), normal(2, 2, 4), normal(2, 3, 4), normal(2, 4, 3))
        along = worst_case.bulk_directions(f)
        tokens = [
            worst_case.eigenvector(A)[1],
            worst_case.tight_input(A, 6, 2.0),
            *worst_case.two_diracs(A, 1.0),
            worst_case.quadratic_input(7, 2.0, u),
            worst_case.fork_input(A, V, 7, 2.0)[0],
            worst_case.even_fork_input(A, V, 7, 2.0)[0],
            worst_case.forks(f, 6, 2.0, along).tokens(),
            worst_case.forks(f, 2, 2.0, along).counts,
            worst_case.two_clusters(f, 6, 2.0, along).tokens(),
            worst_case.on_ball(Attention.from_matrices(A[:2, :2], V[:2, :2]), 3, 1.0, progress=False).x,
        ]
        assert all(map(on_device, tokens)), [one.device for one in tokens]


def test_worst_inputs_are_made_where_the_map_is(apart):
    apart(_worst_inputs)
