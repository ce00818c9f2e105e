"""A device that is not there: CPU tensors that claim another device, and refuse to meet CPU tensors as a GPU's would.

`begin` gives PyTorch's free backend the name "pretend" and sets it up in Python alone
(`torch.utils.backend_registration`, experimental, PyTorch 2.9 or later), until the process ends: it is for a process of
its own, and importing this module does nothing. After it, inside ``PretendDevice()``, tensors are made on the device by
``device="pretend"`` or ``.to("pretend")``, and operations on them run on the CPU. What raises here raises on a GPU: an
operation that mixes devices, a generator of the CPU, ``.numpy()`` without ``.cpu()``.

Not seen: wrong results of a GPU's own kernels, its memory, reduced precision, speed. Autograd and `torch.func` do not
work on these tensors: dispatch modes and subclasses come after them.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DEVICE", "LOG", "PretendDevice", "begin"]

DEVICE = None  # until `begin`
# "waits": values read back, for each of which the host waits; "copies": those that are whole tensors; "sent": tensors
# copied to the device, for each of which the host waits too until the device has come so far
LOG = Counter()
aten = torch.ops.aten
# the value of a tensor, or the shape of an answer, is wanted on the host, which waits for the device
WAITS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave", "_unique2")
# an index may lie on the CPU
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


def begin():
    """Set the device up in this process, for good."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    global DEVICE
    _setup_privateuseone_for_python_backend("pretend")
    DEVICE = torch.device("pretend", 0)


class OnDevice(torch.Tensor):
    """A tensor of the CPU, `held`, in the clothes of one of the device."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert pretend:0 device type tensor to numpy: copy it to the host by .cpu() first")

    __array__ = numpy

    def new_tensor(self, data, *, dtype=None):
        return torch.tensor(data, dtype=dtype or self.dtype).to(DEVICE)

    def tolist(self):
        return self.cpu().tolist()

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        return torch.nn.Parameter(copy, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copy

    def data_ptr(self):
        return self.held.data_ptr()


class PretendDevice(TorchDispatchMode):
    """The time in which tensors can be made on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """One operation, on the CPU, if a device would take it."""
    flat = [*leaves(args), *leaves(kwargs.values())]
    here = any(isinstance(one, OnDevice) for one in flat)
    if not here and kwargs.get("device") is None:
        return func(*args, **kwargs)
    name, wanted = func._schema.name.removeprefix("aten::"), kwargs.get("device")
    goes = here if wanted is None else torch.device(wanted).type == DEVICE.type
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "copy_":
        goes = isinstance(args[0], OnDevice)
    elif name != "_to_copy" and (here or goes):
        check(func, name, flat)
    LOG["copies"] += here and not goes
    LOG["waits"] += here and (not goes or name in WAITS)
    comes = name in ("_to_copy", "copy_") and any(
        isinstance(one, torch.Tensor) and not isinstance(one, OnDevice) for one in flat
    )
    LOG["sent"] += goes and comes and not any(one is True for one in (*args, kwargs.get("non_blocking")))
    out = func(*nested(held, args), **{key: nested(held, one) for key, one in kwargs.items()})
    if torch.Tag.inplace_view in func.tags and here:  # such as squeeze_: the clothes change with the tensor
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    if not goes:
        return out
    before = {id(held(one)): one for one in flat if isinstance(one, torch.Tensor)}  # what was changed in place

    def placed(one):
        return before[id(one)] if id(one) in before else OnDevice(one) if isinstance(one, torch.Tensor) else one

    return nested(placed, out)


def check(func, name, flat):
    """Raise what PyTorch raises where devices are mixed."""
    for one in flat:
        if isinstance(one, torch.Tensor) and not isinstance(one, OnDevice) and one.ndim:
            if not (func in INDEXING and one.dtype in (torch.int64, torch.bool)):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found pretend:0 and cpu "
                    f"({name}, shape {tuple(one.shape)})"
                )
        if isinstance(one, torch.Generator) and one.device.type == "cpu":
            raise RuntimeError("Expected a 'pretend' device type for generator but found 'cpu'")


def leaves(items):
    """All that some arguments hold, in lists and tuples too."""
    for one in items:
        if isinstance(one, (list, tuple)):
            yield from leaves(one)
        else:
            yield one


def nested(change, one):
    """`change` of all that an argument or an answer holds."""
    if isinstance(one, (list, tuple)):
        return type(one)([nested(change, part) for part in one])
    return change(one)


def held(one):
    """The tensor of the CPU behind one of the device; anything else as it is."""
    return one.held if isinstance(one, OnDevice) else one
