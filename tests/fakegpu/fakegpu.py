"""Imported before PyTorch: a PyTorch for CPUs then finds one GPU, "cuda:0", that is none.

Values are the CPU's. What is a GPU's: the device of tensors, the refusal to mix devices, the
numbers of kernels and of syncs (a sync is a moment in which the host waits for the GPU), and which
of PyTorch's attention kernels a call may have. What it cannot show: a GPU's rounding, speed,
streams and races. It needs PyTorch's internals, so one of its versions may refuse to compile.
FAKEGPU_MIB is how much memory it has.
"""

import ctypes
import linecache
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import build

if "torch" in sys.modules:
    raise ImportError("import fakegpu before torch, which asks only once whether there is a GPU")
LIBRARY = build.build()
ctypes.CDLL(str(LIBRARY))
import torch

sys.path.insert(0, str(LIBRARY.parent))
import fakegpu_shim as shim

NAME = "fake GPU"
MEMORY = int(float(os.environ.get("FAKEGPU_MIB", 80 * 1024)) * 2**20)
shim.set_memory(MEMORY)

syncs: Counter[str] = Counter()  # by the line of code that waits
attention: Counter[str] = Counter()  # calls of PyTorch's attention, by kernel


def counts() -> dict[str, Any]:
    """What there was since `clear`: kernels, syncs and calls of attention, and memory in bytes."""
    kernels = shim.kernels()
    return {
        "kernels": sum(kernels.values()),
        "syncs": sum(syncs.values()),
        "attention": dict(attention),
        "peak_memory": shim.peak(),
        "kernels_by_name": dict(sorted(kernels.items(), key=lambda x: -x[1])),
        "syncs_by_line": dict(syncs.most_common()),
    }


def clear() -> None:
    """Count from here."""
    shim.clear()
    syncs.clear()
    attention.clear()


@contextmanager
def uncounted() -> Iterator[None]:
    """A block whose kernels and syncs do not count."""
    before = shim.is_counting(False)
    try:
        yield
    finally:
        shim.is_counting(before)


def note_sync(name: str) -> None:
    """Remember the line outside PyTorch that waits."""
    for frame, number in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if "/torch/" not in file and file != __file__:
            place = file.partition("site-packages/")
            line = linecache.getline(file, number).strip()
            syncs[f"{place[2] or Path(place[0]).name}:{number} {name}: {line}"] += 1
            return
    syncs[name] += 1


shim.tell_of_syncs(note_sync)

# --- torch.cuda -----------------------------------------------------------------------------------


class Device:
    """`torch.cuda.device(...)`: there is only one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> bool:
        return False


class Event:
    """An event; nothing runs in the background."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """It has happened already."""

    def synchronize(self) -> None:
        """It has happened already."""

    def elapsed_time(self, _: Any) -> float:
        """No time is measured."""
        return 1.0


def pretend() -> None:
    """Give `torch.cuda` the answers of a machine with one GPU."""
    cuda: Any = torch.cuda
    nothing = {"_lazy_init": None, "synchronize": None, "empty_cache": None, "set_device": None}
    nothing |= {"reset_peak_memory_stats": None, "manual_seed": None, "manual_seed_all": None}
    answers = {"is_available": True, "is_initialized": True, "is_bf16_supported": True}
    answers |= {"device_count": 1, "current_device": 0, "is_current_stream_capturing": False}
    answers |= {"get_device_capability": (9, 0), "get_device_name": NAME, "memory_summary": ""}
    for name, answer in {**nothing, **answers}.items():
        setattr(cuda, name, lambda *_, answer=answer, **__: answer)
    for name in ("memory_allocated", "memory_reserved"):
        setattr(cuda, name, lambda *_: shim.in_use())
        setattr(cuda, f"max_{name}", lambda *_: shim.peak())
    properties = SimpleNamespace(
        major=9, minor=0, name=NAME, total_memory=MEMORY, multi_processor_count=132
    )
    cuda.get_device_properties = lambda *_: properties
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    cuda.device, cuda.Event = Device, Event
    cuda.FloatTensor = lambda x: torch.tensor(x, dtype=torch.float, device="cuda")
    cuda.DoubleTensor = lambda size: torch.empty(size, dtype=torch.double, device="cuda")

    def to_gpu(x: torch.Tensor, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
        return x.to("cuda:0", non_blocking=non_blocking)

    torch.Tensor.cuda = to_gpu  # type: ignore[assignment,method-assign]


# --- attention ------------------------------------------------------------------------------------

attend_exactly = torch.nn.functional.scaled_dot_product_attention


def kernel_of(q: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> str:
    """Which kernel may attend on a recent GPU, by PyTorch's documentation."""
    if q.shape[-1] != v.shape[-1] or (mask is not None and mask.requires_grad):
        return "math"
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    return "flash" if is_half and mask is None and q.shape[-1] <= 256 else "efficient"


class Attend(torch.autograd.Function):
    """PyTorch's attention, which counts as one kernel there and, as on a GPU, three back."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> torch.Tensor:
        """Attend."""
        given = [x.detach().requires_grad_(x.requires_grad) for x in (q, k, v)]
        shim.count("attention")
        with uncounted(), torch.enable_grad():
            y = attend_exactly(*given, **options)
        ctx.graph = given, y
        return y.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """The gradients of queries, keys and values."""
        given, y = ctx.graph
        for _ in range(3):
            shim.count("attention_backward")
        with uncounted():
            grads = torch.autograd.grad(y, [x for x in given if x.requires_grad], grad)
        found = iter(grads)
        return (*(next(found) if x.requires_grad else None for x in given), None)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """`scaled_dot_product_attention`, noting which kernel may attend."""
    options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, **options}
    if query.is_cuda:
        kind = kernel_of(query, value, attn_mask)
        attention[f"{kind}, causal" if is_causal else kind] += 1
        if kind != "math":
            return Attend.apply(query, key, value, options)
    return attend_exactly(query, key, value, **options)


# PyTorch's own thread for backward passes may outlive Python, and abort the process.
torch.autograd.set_multithreading_enabled(False)
pretend()
torch.nn.functional.scaled_dot_product_attention = attend
