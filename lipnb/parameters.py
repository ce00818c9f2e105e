"""Parameters of attention heads: checked, owned and never changed, so that all that is made of them stays true."""

from lipnb.checks import real_tensor

__all__ = ["Parameters", "head_tensors"]


def head_tensors(tensors):
    """Copies of the parameters of attention heads, name -> tensor or None; or one sentence on what does not fit."""
    own = {name: real_tensor(name, tensors[name], sizes)
           for name, sizes in (("query", "hkd"), ("key", "hkd"), ("value", "hvd"))}
    h, k, d = own["query"].shape
    if 0 in own["query"].shape or 0 in own["value"].shape:
        raise ValueError("query, key and value need at least one head, one row and one column.")
    v = own["value"].shape[1]
    if own["key"].shape != (h, k, d):
        raise ValueError(f"key must have shape {(h, k, d)}, as query has, got {tuple(own['key'].shape)}.")
    if own["value"].shape != (h, v, d):
        raise ValueError(f"value must have shape ({h}, v, {d}) to go with query, got {tuple(own['value'].shape)}.")
    output = own["output"] = None if tensors["output"] is None else real_tensor("output", tensors["output"], "hmv")
    if output is not None and (output.shape[0], output.shape[2]) != (h, v):
        raise ValueError(f"output must have shape ({h}, m, {v}) to go with value, got {tuple(output.shape)}.")
    m = h * v if output is None else output.shape[1]
    for name, shape in (("query_bias", (h, k)), ("key_bias", (h, k)), ("value_bias", (h, v)), ("output_bias", (m,))):
        bias = tensors[name]
        if bias is not None:
            bias = real_tensor(name, bias, [str(size) for size in shape])
            if bias.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(bias.shape)}.")
        own[name] = bias
    if len(kinds := {(tensor.dtype, tensor.device) for tensor in own.values() if tensor is not None}) > 1:
        raise ValueError(f"all parameters must share one dtype and device, got {sorted(map(str, kinds))}.")
    return {name: None if tensor is None else tensor.clone() for name, tensor in own.items()}


def _copy_of(name):
    """A parameter, as a copy that is the caller's to change."""
    return property(lambda self: None if self._own[name] is None else self._own[name].clone(),
                    doc=f"A copy of the parameter `{name}`, or None.")


class Parameters:
    """Tensors and settings that do not change once they are there.

    The tensors are this object's own; who asks for one gets a copy. What is made of them can therefore be kept.
    """

    def __init__(self, own, **settings):
        vars(self).update(settings, _own=own, _settings=settings, _kept={})

    query, key, value, output = (_copy_of(name) for name in ("query", "key", "value", "output"))
    query_bias, key_bias, value_bias, output_bias = (
        _copy_of(f"{name}_bias") for name in ("query", "key", "value", "output"))

    def __setattr__(self, name, value):
        raise AttributeError(f"an Attention does not change once made: make a new one, e.g. f.replace({name}=...).")

    def __delattr__(self, name):
        self.__setattr__(name, None)

    def __getstate__(self):
        return {**vars(self), "_kept": {}}  # made again where it is needed

    def __deepcopy__(self, memo):
        return self

    def replace(self, **changes):
        """A new map with other arguments: ``f.replace(value=2 * f.value, masked=True)``; the others stay."""
        return type(self)(**{**self._own, **self._settings, **changes})

    def kept(self, name, make):
        """What `make` makes of this map, made once for each `name` and kept with it: the map never changes."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return self._kept[name]

    def _tensors(self):
        return {name: tensor for name, tensor in self._own.items() if tensor is not None}

    @property
    def dtype(self):
        """Floating point type of the parameters; inputs must have the same."""
        return self._own["query"].dtype

    @property
    def device(self):
        """Device of the parameters; inputs must lie on the same."""
        return self._own["query"].device

    def to(self, device=None, dtype=None):
        """The same map on another device or in another floating point type."""
        return self.replace(**{name: tensor.to(device=device, dtype=dtype) for name, tensor in self._tensors().items()})
