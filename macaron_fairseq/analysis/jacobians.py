"""Figures of the Jacobian J of what a sub-layer adds to the state.

Eigenvalues are those of a token's own block of J, d x d: how what is added to the token answers to
the token itself. FFNs and cross-attention have no other blocks, and under a causal mask the others
are on one side of the diagonal: there the blocks' eigenvalues are all of J's. In the encoder's
self-attention they are not. The largest singular value is that of the whole sentence's J.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from scipy.sparse.linalg import LinearOperator, svds
from torch import Tensor
from torch.func import jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from macaron_fairseq.analysis.measures import Floats

Field = Callable[[Tensor], Tensor]

# Eigenvalues, and imaginary parts, below this share of the largest modulus count as zero: the
# states are fp32, and a ReLU network's Jacobian has many eigenvalues that are zero but for that.
NEGLIGIBLE = 1e-4

# Rows of the block computed at once, which bounds memory.
ROWS = 64

TOLERANCE = 1e-5  # of the square of the largest singular value, as a share


def differentiable() -> AbstractContextManager[None]:
    """Attention of PyTorch that can be differentiated twice, unlike its fused kernels."""
    return sdpa_kernel(SDPBackend.MATH)


def own_block(field: Field, x: Tensor, token: int) -> Tensor:
    """The derivative of field(x)[token] by x[token], (channel, channel), by VJPs.

    Args:
        field: any map of states. One from a state to what is added to it gives J, and one to the
            state after it gives I + J, which `spectra.of_matrix` takes.
        x: the state, (time, 1, channel).
        token: which one.
    """
    place = torch.tensor([token], device=x.device)

    def own(vector: Tensor) -> Tensor:
        return field(x.index_copy(0, place, vector[None, None]))[token, 0]

    with differentiable():
        return jacrev(own, chunk_size=ROWS)(x[token, 0])


def block_figures(
    block: Tensor, values: Tensor | None = None, negligible: float = NEGLIGIBLE
) -> dict[str, float]:
    """What the eigenvalues of a square matrix A say, in fp64.

    Args:
        block: A.
        values: its eigenvalues, where they are known.
        negligible: see `NEGLIGIBLE`, the share for a block of fp32.

    Returns:
        nonzero: the share of its eigenvalues that are not negligible.
        complex: of these, the share that is not real; NaN if there are none.
        henrici: the departure from normality of Henrici 1962, sqrt(|A|^2 - sum |lambda|^2) / |A|
            with Frobenius norms: 0 for a normal matrix, 1 for a nilpotent one.
        asymmetry: |A - A^T| / |A + A^T|: 0 for a symmetric matrix.
    """
    a = block.double().cpu()
    values = torch.linalg.eigvals(a) if values is None else values
    limit = negligible * values.abs().max()
    nonzero = values.abs() > limit
    departure = (a.norm() ** 2 - (values.abs() ** 2).sum()).clamp(min=0).sqrt()
    return {
        "nonzero": nonzero.double().mean().item(),
        "complex": (values.imag.abs() > limit)[nonzero].double().mean().item(),
        "henrici": (departure / a.norm()).item(),
        "asymmetry": ((a - a.T).norm() / (a + a.T).norm()).item(),
    }


def products(field: Field, x: Tensor) -> tuple[Field, Field]:
    """The functions v -> J v and w -> J^T w at the state x.

    J v is the derivative of u -> J^T u, which is linear: two VJPs, whose graph is built once and
    runs in C++, many times sooner than PyTorch's forward mode for sentences.
    """
    x = x.detach().requires_grad_()
    with differentiable(), torch.enable_grad():
        y = field(x)
        u = torch.zeros_like(y, requires_grad=True)
        (pulled_back,) = torch.autograd.grad(y, x, u, create_graph=True)

    def forwards(v: Tensor) -> Tensor:
        return torch.autograd.grad(pulled_back, u, v, retain_graph=True)[0]

    def backwards(w: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, w, retain_graph=True)[0]

    return forwards, backwards


def largest_singular_value(field: Field, x: Tensor, generator: torch.Generator) -> float:
    """That of the whole J at the state x, by Lanczos with products J v and J^T w (ARPACK)."""
    forwards, backwards = products(field, x)
    start = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    if not forwards(start.to(x.device)).any():  # ARPACK refuses a matrix of zeros
        return 0.0

    def on_arrays(product: Field) -> Callable[[Floats], Floats]:
        return lambda v: product(torch.from_numpy(v).to(x).view_as(x)).cpu().numpy().ravel()

    size = x.numel()
    matrix = LinearOperator(
        (size, size), on_arrays(forwards), on_arrays(backwards), dtype=start.numpy().dtype
    )
    tolerance, v0 = math.sqrt(TOLERANCE), start.numpy().ravel()  # SciPy squares what it is given
    found = svds(matrix, k=1, v0=v0, tol=tolerance, return_singular_vectors=False)
    return float(found[0])
