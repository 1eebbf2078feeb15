"""Products of arrays, linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.scipy import fft, linalg

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.arguments import axes, dtype, number, numbers, tensor, tensors

Array = Any


def _adjoint(x: Array) -> Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _flipped(x: Array, transposed: bool, adjoint: bool) -> Array:
    return _adjoint(x) if adjoint else jnp.swapaxes(x, -1, -2) if transposed else x


def matmul(a: Any, b: Any, ta: bool, tb: bool, aa: bool, ab: bool, *rest: Any) -> Array:
    """Multiply matrices."""
    a, b = tensors(a, b)
    result = jnp.matmul(_flipped(a, ta, aa), _flipped(b, tb, ab))
    output_type = rest[2] if len(rest) > 2 else None
    return result if output_type is None else result.astype(dtype(output_type))


def matvec(a: Any, b: Any, ta: bool, aa: bool, *_: Any) -> Array:
    """Multiply matrices with vectors."""
    a, b = tensors(a, b)
    return jnp.matmul(_flipped(a, ta, aa), b[..., None])[..., 0]


def tensordot(a: Any, b: Any, pairs: Any) -> Array:
    """Contract axes of two arrays."""
    pairs = [numbers(axis) for axis in pairs] if np.ndim(pairs) else number(pairs)
    return jnp.tensordot(*tensors(a, b), pairs)


def band_part(x: Any, lower: Any, upper: Any) -> Array:
    """Keep so many diagonals below and above the main one; a negative number keeps all."""
    x = tensor(x)
    below = jnp.arange(x.shape[-2])[:, None] - jnp.arange(x.shape[-1])[None, :]
    kept = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return jnp.where(kept, x, jnp.zeros((), x.dtype))


def _one_diagonal(name: str, k: Any) -> int:
    """Return which diagonal is meant, of which there must be one."""
    if len(numbers(k)) > 1:
        raise out_of_reach(
            what=f"tf.linalg.{name} with several diagonals",
            why="it is not in the table of functions",
            write=f"tf.linalg.{name}(..., k=i) for each of them",
        )
    return int(numbers(k)[0])


def diag(x: Any, k: Any, rows: Any, columns: Any, padding: Any, align: str) -> Array:
    """Return matrices with this diagonal."""
    x, k = tensor(x), _one_diagonal("diag", k)
    below, right = max(-k, 0), max(k, 0)
    height, width = number(rows), number(columns)
    square = x.shape[-1] + abs(k) if (height, width) == (-1, -1) else None
    height = square or (x.shape[-1] + below if height == -1 else height)
    width = square or (x.shape[-1] + right if width == -1 else width)
    index = jnp.arange(x.shape[-1])
    empty = jnp.full((*x.shape[:-1], height, width), padding, x.dtype)
    return empty.at[..., index + below, index + right].set(x)


def diag_part(x: Any, k: Any, padding: Any, align: str) -> Array:
    """Return a diagonal of matrices."""
    return jnp.diagonal(tensor(x), _one_diagonal("diag_part", k), -2, -1)


def set_diag(x: Any, values: Any, k: Any, align: str) -> Array:
    """Return matrices with another diagonal."""
    (x, values), k = tensors(x, values), _one_diagonal("set_diag", k)
    index = jnp.arange(values.shape[-1])
    return x.at[..., index + max(-k, 0), index + max(k, 0)].set(values)


def solve(a: Any, b: Any, adjoint: bool) -> Array:
    """Solve a x = b."""
    a, b = tensors(a, b)
    return jnp.linalg.solve(_adjoint(a) if adjoint else a, b)


def triangular_solve(a: Any, b: Any, lower: bool, adjoint: bool) -> Array:
    """Solve a x = b with a triangular matrix."""
    a, b = tensors(a, b)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint
    )


def svd(x: Any, full: bool, compute_uv: bool) -> Any:
    """Return singular values, and both matrices if asked: (s, u, v), of which v is not adjoint."""
    if not compute_uv:
        return jnp.linalg.svd(tensor(x), full_matrices=full, compute_uv=False)
    u, s, vh = jnp.linalg.svd(tensor(x), full_matrices=full)
    return s, u, _adjoint(vh)


def lstsq(a: Any, b: Any, l2: Any, fast: bool) -> Array:
    """Solve least squares through the normal equations."""
    a, b = tensors(a, b)
    if not fast:
        return jnp.matmul(jnp.linalg.pinv(a), b)
    gram = jnp.matmul(_adjoint(a), a) + l2 * jnp.eye(a.shape[-1], dtype=a.dtype)
    return jnp.linalg.solve(gram, jnp.matmul(_adjoint(a), b))


def _real_fourier(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Any, length: Any) -> Array:
        return function(tensor(x), None if length is None else numbers(length)[0])

    return call


def _real_fourier_2d(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Any, lengths: Any) -> Array:
        return function(tensor(x), None if lengths is None else numbers(lengths))

    return call


def cosine_transform(x: Any, kind: Any, length: Any, axis: Any, norm: Any) -> Array:
    """Return the discrete cosine transform of type 2, the one that JAX has."""
    if kind != 2 or length is not None or axis != -1:
        raise out_of_reach(
            what=f"tf.signal.dct(type={kind}, n={length}, axis={axis})",
            why="JAX has type 2 of all elements of the last axis",
            write="tf.signal.dct(x), or the call in the tf.data pipeline",
        )
    return fft.dct(tensor(x), norm=norm)


def frame(x: Any, length: Any, step: Any, pad_end: bool, value: Any, axis: Any) -> Array:
    """Cut an axis into frames that may overlap."""
    x, length, step = tensor(x), number(length), number(step)
    axis = number(axis) % x.ndim
    if pad_end:
        missing = max(0, length + step * (-(-x.shape[axis] // step) - 1) - x.shape[axis])
        x = jnp.pad(x, [(0, missing if at == axis else 0) for at in range(x.ndim)], constant_values=value)
    count = 1 + (x.shape[axis] - length) // step
    count = max(0, count) if isinstance(count, int) else count
    return jnp.take(x, jnp.arange(count)[:, None] * step + jnp.arange(length), axis=axis)


def stft(x: Any, length: Any, step: Any, fft_length: Any, window: Any, pad_end: bool) -> Array:
    """Return the Fourier transforms of frames."""
    length = number(length)
    if fft_length is None:
        fft_length = 1 << (length - 1).bit_length()
    frames = frame(x, length, step, pad_end, 0, -1)
    if window is not None:
        frames = frames * jnp.asarray(window(length, dtype=tf.as_dtype(frames.dtype))).astype(frames.dtype)
    return jnp.fft.rfft(frames, number(fft_length))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linalg.matmul": matmul,
    "linalg.matvec": matvec,
    "tensordot": tensordot,
    "einsum": lambda equation, *values, **_: jnp.einsum(equation, *tensors(*values)),
    "linalg.adjoint": lambda x: _adjoint(tensor(x)),
    "linalg.band_part": band_part,
    "linalg.cholesky": lambda x: jnp.linalg.cholesky(tensor(x)),
    "linalg.cholesky_solve": lambda factor, b: linalg.cho_solve((tensor(factor), True), tensor(b)),
    "linalg.cross": lambda a, b: jnp.cross(*tensors(a, b)),
    "linalg.det": lambda x: jnp.linalg.det(tensor(x)),
    "linalg.diag": diag,
    "linalg.diag_part": diag_part,
    "linalg.eigh": lambda x: tuple(jnp.linalg.eigh(tensor(x))),
    "linalg.eigvalsh": lambda x: jnp.linalg.eigvalsh(tensor(x)),
    "linalg.expm": lambda x: linalg.expm(tensor(x)),
    "linalg.inv": lambda x, adjoint: jnp.linalg.inv(_adjoint(tensor(x)) if adjoint else tensor(x)),
    "linalg.logdet": lambda x: jnp.linalg.slogdet(tensor(x))[1],
    "linalg.lstsq": lstsq,
    "linalg.matrix_transpose": lambda x, conjugate: _flipped(tensor(x), True, conjugate),
    "linalg.pinv": lambda x, rcond, validate: jnp.linalg.pinv(tensor(x), rtol=rcond),
    "linalg.qr": lambda x, full: tuple(jnp.linalg.qr(tensor(x), "complete" if full else "reduced")),
    "linalg.set_diag": set_diag,
    "linalg.slogdet": lambda x: tuple(jnp.linalg.slogdet(tensor(x))),
    "linalg.solve": solve,
    "linalg.svd": svd,
    "linalg.tensor_diag": lambda x: jnp.diag(tensor(x).reshape(-1)).reshape(tensor(x).shape * 2),
    "linalg.trace": lambda x: jnp.trace(tensor(x), axis1=-2, axis2=-1),
    "linalg.triangular_solve": triangular_solve,
    "signal.fft": lambda x: jnp.fft.fft(tensor(x)),
    "signal.ifft": lambda x: jnp.fft.ifft(tensor(x)),
    "signal.fft2d": lambda x: jnp.fft.fft2(tensor(x)),
    "signal.ifft2d": lambda x: jnp.fft.ifft2(tensor(x)),
    "signal.rfft": _real_fourier(jnp.fft.rfft),
    "signal.irfft": _real_fourier(jnp.fft.irfft),
    "signal.fft3d": lambda x: jnp.fft.fftn(tensor(x), axes=(-3, -2, -1)),
    "signal.ifft3d": lambda x: jnp.fft.ifftn(tensor(x), axes=(-3, -2, -1)),
    "signal.rfft2d": _real_fourier_2d(jnp.fft.rfft2),
    "signal.irfft2d": _real_fourier_2d(jnp.fft.irfft2),
    "signal.fftshift": lambda x, axis: jnp.fft.fftshift(tensor(x), axes(axis)),
    "signal.ifftshift": lambda x, axis: jnp.fft.ifftshift(tensor(x), axes(axis)),
    "signal.dct": cosine_transform,
    "signal.frame": frame,
    "signal.stft": stft,
}
