"""Products of arrays, linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from keras_tpu_ext.dropin.functions.arguments import number, numbers

Array = Any


def _flipped(x: Array, transposed: bool, adjoint: bool) -> Array:
    flipped = jnp.swapaxes(x, -1, -2) if transposed or adjoint else x
    return jnp.conj(flipped) if adjoint else flipped


def _matmul(a: Array, b: Array, ta: bool, tb: bool, aa: bool, ab: bool, to: Any) -> Array:
    product = jnp.matmul(_flipped(a, ta, aa), _flipped(b, tb, ab))
    return product if to is None else product.astype(to)


def _tensordot(a: Array, b: Array, pairs: Any) -> Array:
    return jnp.tensordot(a, b, [numbers(axis) for axis in pairs] if np.ndim(pairs) else number(pairs))


def _band_part(x: Array, lower: Any, upper: Any) -> Array:
    """Keep so many diagonals below and above the main one; a negative number keeps all."""
    below = jnp.arange(x.shape[-2])[:, None] - jnp.arange(x.shape[-1])[None, :]
    kept = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return jnp.where(kept, x, jnp.zeros((), x.dtype))


def _diag(x: Array, k: int) -> Array:
    empty = jnp.zeros((*x.shape[:-1], *[x.shape[-1] + abs(k)] * 2), x.dtype)
    return _set_diag(empty, x, k)


def _set_diag(x: Array, values: Array, k: int) -> Array:
    index = jnp.arange(values.shape[-1])
    return x.at[..., index + max(-k, 0), index + max(k, 0)].set(values)


def _triangular_solve(a: Array, b: Array, lower: bool, adjoint: bool) -> Array:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint
    )


def _svd(x: Array, full: bool, compute_uv: bool) -> Any:
    """Return singular values, and both matrices if asked: (s, u, v), of which v is not adjoint."""
    if not compute_uv:
        return jnp.linalg.svd(x, full_matrices=full, compute_uv=False)
    u, s, vh = jnp.linalg.svd(x, full_matrices=full)
    return s, u, _flipped(vh, True, True)


def _real_fourier(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, length: function(x, None if length is None else length[0])


def _frame(x: Array, length: int, step: int, pad_end: bool, value: Any, axis: int) -> Array:
    """Cut an axis into frames that may overlap."""
    axis %= x.ndim
    if pad_end:
        missing = max(0, length + step * (-(-x.shape[axis] // step) - 1) - x.shape[axis])
        x = jnp.pad(x, [(0, missing if at == axis else 0) for at in range(x.ndim)], constant_values=value)
    count = 1 + (x.shape[axis] - length) // step
    count = max(0, count) if isinstance(count, int) else count
    return jnp.take(x, jnp.arange(count)[:, None] * step + jnp.arange(length), axis=axis)


def _stft(x: Array, length: int, step: int, fft_length: Any, window: Any, pad_end: bool) -> Array:
    """Return the Fourier transforms of frames."""
    size = 1 << (length - 1).bit_length() if fft_length is None else fft_length[0]
    frames = _frame(x, length, step, pad_end, 0, -1)
    if window is not None:
        frames = frames * jnp.asarray(window(length, dtype=tf.as_dtype(frames.dtype))).astype(frames.dtype)
    return jnp.fft.rfft(frames, size)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linalg.matmul": _matmul,
    "linalg.matvec": lambda a, b, ta, aa: jnp.matmul(_flipped(a, ta, aa), b[..., None])[..., 0],
    "tensordot": _tensordot,
    "einsum": lambda equation, *values, **_: jnp.einsum(equation, *values),
    "linalg.adjoint": lambda x: _flipped(x, True, True),
    "linalg.band_part": _band_part,
    "linalg.cholesky": jnp.linalg.cholesky,
    "linalg.cross": jnp.cross,
    "linalg.det": jnp.linalg.det,
    "linalg.diag": _diag,
    "linalg.diag_part": lambda x, k: jnp.diagonal(x, k, -2, -1),
    "linalg.eigh": lambda x: tuple(jnp.linalg.eigh(x)),
    "linalg.inv": lambda x, adjoint: jnp.linalg.inv(_flipped(x, False, adjoint)),
    "linalg.logdet": lambda x: jnp.linalg.slogdet(x)[1],
    "linalg.matrix_transpose": lambda x, conjugate: _flipped(x, True, conjugate),
    "linalg.pinv": lambda x, rcond: jnp.linalg.pinv(x, rtol=rcond),
    "linalg.qr": lambda x, full: tuple(jnp.linalg.qr(x, "complete" if full else "reduced")),
    "linalg.set_diag": _set_diag,
    "linalg.solve": lambda a, b, adjoint: jnp.linalg.solve(_flipped(a, False, adjoint), b),
    "linalg.svd": _svd,
    "linalg.trace": lambda x: jnp.trace(x, axis1=-2, axis2=-1),
    "linalg.triangular_solve": _triangular_solve,
    "signal.fft": jnp.fft.fft,
    "signal.ifft": jnp.fft.ifft,
    "signal.fft2d": jnp.fft.fft2,
    "signal.ifft2d": jnp.fft.ifft2,
    "signal.rfft": _real_fourier(jnp.fft.rfft),
    "signal.irfft": _real_fourier(jnp.fft.irfft),
    "signal.frame": _frame,
    "signal.stft": _stft,
}
