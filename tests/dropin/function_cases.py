"""Arguments for each function of the drop-in's table: arrays of NumPy are traced, all else is static.

Values at corners (ties, zeros, bounds) are among them: their gradients must be TensorFlow's.
"""

from typing import NamedTuple

import numpy as np

_RNG = np.random.default_rng(0)


class Case(NamedTuple):
    args: tuple
    kwargs: dict
    gradient: bool = True  # whether TensorFlow has one
    rtol: float = 2e-5
    signs: bool = True  # whether the signs are determined


def case(*args, gradient=True, rtol=2e-5, signs=True, **kwargs):
    return Case(args, kwargs, gradient, rtol, signs)


def f(*shape):
    """Return floats on both sides of 0."""
    return _RNG.normal(size=shape).astype("float32")


def p(*shape):
    """Return floats between 0.1 and 0.9."""
    return _RNG.uniform(0.1, 0.9, size=shape).astype("float32")


def i(*shape, high=5):
    """Return integers from 0."""
    return _RNG.integers(0, high, size=shape).astype("int32")


def b(*shape):
    return _RNG.random(size=shape) > 0.5


def a(values, dtype="float32"):
    return np.asarray(values, dtype)


def s(n, *batch):
    """Return matrices that are symmetric and positive definite."""
    m = f(*batch, n, n)
    return (m @ np.swapaxes(m, -1, -2) + n * np.eye(n)).astype("float32")


def c(*shape):
    return (f(*shape) + 1j * f(*shape)).astype("complex64")


_CORNERS = a([-7.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5, 6.0, 7.5])
_TIES = (a([[1, 2, 3], [4, 0, -1]]), a([[1, 3, 2], [4, 0, -2]]))
_INTS = (a([7, -7, 8, -8], "int32"), a([3, 3, -3, -3], "int32"))

_UNARY = {
    "math.abs math.exp math.sigmoid math.sign math.square math.tanh math.softplus math.log_sigmoid "
    "math.negative math.sin math.cos math.asinh math.atan math.erf math.erfc math.sinh math.cosh math.tan math.expm1 "
    "nn.elu nn.relu nn.relu6 nn.selu nn.softsign math.is_nan math.is_inf math.is_finite "
    "math.reciprocal_no_nan": _CORNERS,
    "math.acos math.asin math.atanh math.erfinv math.log math.log1p math.rsqrt math.sqrt "
    "math.reciprocal math.lgamma math.digamma": p(2, 3),
    "math.acosh": p(4) + 1,
    "math.ceil math.floor math.round math.rint": a([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4, 2.6]),
    "math.logical_not": b(4),
    "math.real math.imag math.conj math.angle": c(2, 3),
}
_BINARY = {
    "math.add math.subtract math.multiply math.divide math.truediv math.maximum math.minimum math.equal "
    "math.not_equal math.less math.less_equal math.greater math.greater_equal math.squared_difference "
    "math.divide_no_nan math.multiply_no_nan math.xdivy math.floordiv math.floormod": [
        case(*_TIES, gradient=True),
        case(f(2, 3), p(3)),
        case(f(2, 1, 3), p(4, 1)),
        case(f(3), 2.0),
    ],
    "math.pow": [case(p(3), f(3)), case(f(3), 2), case(f(2, 3), 3.0), case(p(3), 0.5), case(2.0, f(3))],
    "math.atan2": [case(f(3), f(3))],
    "math.xlogy math.xlog1py": [case(a([0.0, 0.5, 2.0]), p(3))],
    "math.logical_and math.logical_or math.logical_xor": [case(b(4), b(4))],
    "dtypes.complex": [case(f(3), f(3), gradient=False)],
}
_REDUCTIONS = "sum mean max min prod logsumexp euclidean_norm std variance"
_OF_REDUCTION = [
    (),
    (1,),
    ([0, 2], True),
    (-1, True),
    ((1,),),
]


def _spread(table):
    return {name: value for names, value in table.items() for name in names.split()}


CASES: dict[str, list[Case]] = {
    **{name: [case(x)] for name, x in _spread(_UNARY).items()},
    **_spread(_BINARY),
    **{
        f"math.reduce_{name}": [
            *[case(f(2, 3, 4), *rest) for rest in _OF_REDUCTION],
            case(a([[1, 1, 0], [2, 3, 3]]), 1),
        ]
        for name in _REDUCTIONS.split()
    },
    "math.sqrt": [case(p(3)), case(a([0, 4]))],
    "math.reduce_all": [case(b(2, 3), *rest) for rest in [(), (1,), (0, True)]],
    "math.reduce_any": [case(b(2, 3), *rest) for rest in [(), ([0],), (-1, True)]],
    "math.scalar_mul": [case(2.0, f(3))],
    "nn.leaky_relu": [case(_CORNERS), case(_CORNERS, 0.3), case(_CORNERS, alpha=0.1)],
    "nn.gelu": [case(_CORNERS), case(_CORNERS, True)],
    "nn.silu": [case(_CORNERS), case(_CORNERS, beta=1.5)],
    "clip_by_value": [case(_CORNERS, -1.0, 1.0), case(_CORNERS, 0.0, _CORNERS + 0.5)],
    "math.argmax": [case(i(3, 4)), case(f(3, 4), 1), case(f(3, 4), axis=-1, output_type="int32")],
    "math.argmin": [case(f(3, 4)), case(i(3, 4), 1)],
    "argsort": [case(i(3, 6)), case(i(3, 6), direction="DESCENDING"), case(f(3, 4), axis=0)],
    "sort": [case(f(3, 6)), case(f(3, 6), 0), case(f(3, 6), direction="DESCENDING")],
    "math.top_k": [case(f(3, 6), 2), case(i(3, 6), k=3), case(f(5))],
    "math.in_top_k": [case(a([0, 1, 2], "int32"), a([[1, 1, 0], [0, 1, 2], [3, 2, 1]]), k) for k in (1, 2)],
    "math.cumsum": [
        case(f(2, 3)),
        case(f(2, 3), 1, True),
        case(f(2, 3), -1, reverse=True),
        case(i(3), 0, True, True),
    ],
    "math.cumprod": [case(f(2, 3)), case(f(2, 3), 1, exclusive=True), case(f(2, 3), 0, reverse=True)],
    **{
        f"math.unsorted_segment_{name}": [
            case(f(4, 2), a([0, 2, 0, -1], "int32"), 4, gradient=name != "mean"),
            case(p(2, 2), a([[0, 1], [1, 1]], "int32"), 3, gradient=name != "mean"),
        ]
        for name in ("sum", "max", "mean")
    },
    "math.confusion_matrix": [case(i(6), i(6), num_classes=5), case(i(6), i(6), 5, p(6), "float32", gradient=False)],
    "math.count_nonzero": [case(i(3, 4, high=2)), case(i(3, 4, high=2), 1, keepdims=True)],
    "math.l2_normalize": [case(f(2, 3)), case(f(2, 3), 1), case(a([[0, 0], [3, 4]]), -1), case(f(2, 3), [0, 1], 0.1)],
    "norm": [
        case(f(2, 3)),
        case(f(2, 3), axis=1),
        case(f(2, 3), 1, 0),
        case(f(2, 3), np.inf, -1, True),
        case(f(2, 3, 4), axis=[-2, -1]),
        case(f(2, 3), 2, axis=1),
    ],
    "linalg.normalize": [case(f(2, 3), axis=1)],
    "linalg.global_norm": [case([f(2), f(3, 2)])],
    "clip_by_norm": [case(f(2, 3), 1.0), case(f(2, 3), 0.5, [1]), case(p(2, 3), 9.0)],
    # arrays
    "cast": [
        case(_CORNERS, "int32"),
        case(i(3), "float32"),
        case(_CORNERS, "bool"),
        case(b(3), "float32"),
        case(f(3), "float16", rtol=0.001),
        case(f(3), np.float64),
        case(i(3), "int64"),
    ],
    "constant": [case([1.0, 2.0], shape=[2, 1]), case(1, "float32", [2, 3])],
    "convert_to_tensor": [case(f(2)), case([[1.0, 2.0]]), case(i(3), dtype="int32")],
    "identity": [case(f(2))],
    "stop_gradient": [case(f(2))],
    "shape": [case(f(2, 3)), case(f(3), "int64")],
    "size": [case(f(2, 3))],
    "rank": [case(f(2, 3))],
    "ensure_shape": [case(f(2, 3), [None, 3])],
    "fill": [case([2, 3], 1.5), case([2], f(), gradient=False)],
    "zeros": [case([2, 3]), case((2,), "int32"), case([])],
    "ones": [case([2, 3]), case([2], dtype="bool")],
    "zeros_like": [case(f(2)), case(i(2), "float32")],
    "ones_like": [case(i(2)), case(f(2), dtype="int32")],
    "range": [case(5), case(2, 7, 2), case(0.0, 1.0, 0.25), case(3, dtype="float32")],
    "linspace": [case(0.0, 1.0, 5), case(f(2), f(2), 3, axis=1, gradient=False)],
    "eye": [case(3), case(2, 3, [2], "int32")],
    "meshgrid": [case(f(2), f(3)), case(f(2), f(3), indexing="ij")],
    "one_hot": [
        case(a([0, 2, -1, 5], "int32"), 3),
        case(i(2, 2), 5, 2.0, -1.0, 0),
        case(i(2), 4, dtype="int32"),
        case(i(2, 3), 4, axis=1),
        case(i(2), 3, on_value=5, off_value=1),
    ],
    "sequence_mask": [case(i(3), 4), case(i(2, 2), maxlen=3, dtype="float32")],
    "reshape": [case(f(2, 6), [3, -1]), case(f(2, 6), (-1,)), case(f(1), []), case(f(4), [np.int32(2), 2])],
    "expand_dims": [case(f(2, 3), 0), case(f(2, 3), axis=-1), case(f(2, 3), -2)],
    "squeeze": [case(f(1, 2, 1)), case(f(1, 2, 1), 0), case(f(1, 2, 1), axis=[-1])],
    "transpose": [case(f(2, 3, 4)), case(f(2, 3, 4), [1, 0, 2]), case(c(2, 3), conjugate=True)],
    "concat": [case([f(2, 3), f(2, 1)], 1), case([f(2), f(3)], axis=-1), case([i(2), i(1)], 0)],
    "stack": [case([f(2), f(2)]), case([f(2), f(2)], axis=-1), case([f(), 1.0])],
    "unstack": [case(f(2, 3)), case(f(2, 3), axis=1), case(f(2, 3), 3, -1)],
    "split": [case(f(4, 3), 2), case(f(4, 6), [1, 2, 3], 1), case(f(4, 3), [1, -1]), case(f(2, 4), 4, axis=-1)],
    "tile": [case(f(2, 3), [2, 1]), case(f(2), [3])],
    "repeat": [case(f(2, 3), 2), case(f(2, 3), 2, axis=1), case(f(2, 3), [1, 2], 0)],
    "pad": [
        case(f(2, 3), [[1, 0], [0, 2]]),
        case(f(2, 3), [[0, 1], [2, 2]], "REFLECT"),
        case(f(2, 3), [[1, 1], [2, 2]], "SYMMETRIC"),
        case(f(2), [[1, 1]], constant_values=-1.0),
    ],
    "reverse": [case(f(2, 3), [0]), case(f(2, 3), axis=[-1, 0])],
    "roll": [case(f(2, 3), 1, 1), case(f(2, 3), [1, -1], [0, 1])],
    "broadcast_to": [case(f(3), [2, 3])],
    "math.add_n": [case([f(2), f(2), f(2)])],
    "nn.space_to_depth": [case(f(1, 4, 6, 2), 2)],
    "nn.depth_to_space": [case(f(1, 2, 3, 8), 2)],
    # indexing
    "where": [case(b(2, 3), f(2, 3), f(3)), case(b(2, 3), 1.0, f(2, 3)), case(b(2, 1), f(3), 0.0)],
    "gather": [
        case(f(4, 3), i(2, high=4)),
        case(f(4, 3), i(2, 2, high=3), axis=1),
        case(f(2, 4, 3), i(2, 5, high=4), batch_dims=1),
        case(f(2, 4, 3), i(2, 2, high=3), axis=-1, batch_dims=1),
        case(f(4), 2),
    ],
    "gather_nd": [case(f(3, 4, 2), i(5, 2, high=3)), case(f(2, 4, 3), i(2, 2, 1, high=4), batch_dims=1)],
    "scatter_nd": [case(i(3, 1), f(3, 2), [5, 2]), case(i(3, 2, high=3), f(3), [3, 3])],
    **{
        f"tensor_scatter_nd_{name}": [
            case(f(5, 2), a([[4], [1]], "int32"), f(2, 2), gradient=name in ("update", "add", "sub"))
        ]
        for name in ("update", "add", "sub", "max", "min")
    },
    "slice": [case(f(3, 4), [1, 0], [2, -1]), case(f(3, 4), a([0, 1], "int32"), [2, 2], gradient=False)],
    "searchsorted": [
        case(np.sort(f(5)), f(3), gradient=False),
        case(np.sort(f(2, 5)), f(2, 3), "right", gradient=False),
    ],
    "reverse_sequence": [case(f(3, 4, 2), a([1, 4, 2], "int32"), 1), case(f(4, 2), a([3, 2], "int32"), 0, 1)],
    "nn.embedding_lookup": [case(f(5, 2), i(3))],
    # products
    "linalg.matmul": [
        case(f(2, 3), f(3, 4)),
        case(f(3, 2), f(3, 4), True),
        case(f(2, 3), f(4, 3), transpose_b=True),
        case(f(5, 2, 3), f(3, 4)),
        case(c(3, 2), c(3, 2), adjoint_a=True, gradient=False),
    ],
    "linalg.matvec": [case(f(2, 3), f(3)), case(f(4, 3, 2), f(4, 3), transpose_a=True)],
    "tensordot": [
        case(f(2, 3), f(3, 4), 1),
        case(f(2, 3, 4), f(4, 3), [[1, 2], [1, 0]]),
        case(f(2, 3), f(4, 3), [1, 1]),
    ],
    "einsum": [
        case("ij,jk->ik", f(2, 3), f(3, 4)),
        case("bij,bkj->bik", f(2, 3, 4), f(2, 5, 4)),
        case("ii->", f(3, 3)),
    ],
    "linalg.adjoint": [case(c(2, 3))],
    "linalg.band_part": [case(f(2, 4, 4), -1, 0), case(f(4, 4), 0, -1), case(f(3, 4), 1, 1)],
    "linalg.cholesky": [case(s(3, 2), gradient=False)],
    "linalg.cross": [case(f(2, 3), f(2, 3))],
    "linalg.det": [case(s(3, 2))],
    "linalg.diag": [case(f(2, 3)), case(f(3), k=1), case(f(3), k=-1)],
    "linalg.diag_part": [case(f(2, 3, 3)), case(f(3, 4), k=1)],
    "linalg.eigh": [case(s(3), gradient=False, rtol=1e-3, signs=False)],
    "linalg.inv": [case(s(3)), case(s(3) + f(3, 3), True, gradient=False)],
    "linalg.logdet": [case(s(3, 2))],
    "linalg.matrix_transpose": [case(f(2, 3, 4))],
    "linalg.pinv": [case(f(3, 2), gradient=False, rtol=1e-3)],
    "linalg.qr": [case(s(3), gradient=False, signs=False)],
    "linalg.set_diag": [case(f(3, 3), f(3)), case(f(2, 3, 4), f(2, 3), k=1)],
    "linalg.solve": [case(s(3), f(3, 2)), case(s(3) + f(3, 3), f(3, 2), True)],
    "linalg.svd": [
        case(s(3), compute_uv=False),
        case(f(4, 2), False, False),
        case(f(4, 2), gradient=False, signs=False),
    ],
    "linalg.trace": [case(f(2, 3, 3))],
    "linalg.triangular_solve": [
        case(np.tril(s(3)), f(3, 2)),
        case(np.triu(s(3)), f(3, 2), lower=False, adjoint=True),
    ],
    "signal.fft": [case(c(2, 8), gradient=False)],
    "signal.ifft": [case(c(2, 8), gradient=False)],
    "signal.fft2d": [case(c(4, 8), gradient=False)],
    "signal.ifft2d": [case(c(4, 8), gradient=False)],
    "signal.rfft": [case(f(2, 8), gradient=False), case(f(2, 8), [4], gradient=False)],
    "signal.irfft": [case(c(2, 5), gradient=False)],
    "signal.frame": [case(f(2, 10), 4, 3), case(f(10), 4, 3, True)],
    "signal.stft": [case(f(2, 20), 8, 4, gradient=False, rtol=1e-4), case(f(20), 6, 4, pad_end=True, gradient=False)],
    # nn
    "nn.conv1d": [case(f(2, 8, 3), f(3, 3, 4), 2, "SAME"), case(f(2, 8, 3), f(3, 3, 4), 1, "VALID", dilations=2)],
    "nn.conv2d": [
        case(f(2, 7, 6, 4), f(3, 3, 4, 5), [1, 2, 2, 1], "SAME"),
        case(f(2, 7, 6, 4), f(3, 3, 4, 5), 1, "VALID"),
        case(f(2, 7, 6, 4), f(3, 2, 4, 4), 1, "SAME", dilations=2),
        case(f(2, 7, 6, 4), f(3, 3, 4, 4), 2, [[0, 0], [1, 1], [2, 0], [0, 0]], gradient=False),
    ],
    "nn.conv3d": [case(f(1, 4, 4, 4, 2), f(2, 2, 2, 2, 3), [1, 1, 1, 1, 1], "SAME")],
    "nn.convolution": [case(f(2, 8, 3), f(3, 3, 4)), case(f(2, 5, 5, 3), f(3, 3, 3, 4), padding="SAME", strides=2)],
    "nn.conv1d_transpose": [case(f(2, 4, 3), f(3, 5, 3), [2, 8, 5], 2)],
    "nn.conv2d_transpose": [
        case(f(2, 4, 3, 3), f(3, 3, 5, 3), [2, 8, 6, 5], 2),
        case(f(2, 4, 3, 3), f(3, 3, 5, 3), [2, 7, 5, 5], [1, 2, 2, 1], "SAME"),
        case(f(2, 4, 3, 3), f(2, 2, 5, 3), [2, 8, 6, 5], 2, "VALID"),
    ],
    "nn.conv3d_transpose": [case(f(1, 2, 2, 2, 2), f(2, 2, 2, 3, 2), [1, 4, 4, 4, 3], 2)],
    "nn.depthwise_conv2d": [
        case(f(2, 6, 6, 3), f(3, 3, 3, 2), [1, 2, 2, 1], "SAME"),
        case(f(2, 6, 6, 3), f(3, 3, 3, 1), [1, 1, 1, 1], "VALID", dilations=[2, 2]),
    ],
    "nn.separable_conv2d": [case(f(2, 6, 6, 3), f(3, 3, 3, 2), f(1, 1, 6, 4), [1, 1, 1, 1], "SAME")],
    "nn.max_pool": [case(f(2, 7, 6, 3), 2, 2, "SAME"), case(f(2, 7, 3), [3], [2], "VALID")],
    "nn.max_pool1d": [case(f(2, 7, 3), 3, 2, "SAME")],
    "nn.max_pool2d": [
        case(a(i(2, 6, 6, 1, high=2)), 3, 1, "SAME"),
        case(f(2, 7, 6, 3), [1, 3, 3, 1], [1, 2, 2, 1], "VALID"),
    ],
    "nn.max_pool3d": [case(f(1, 4, 4, 4, 2), 2, 2, "VALID")],
    "nn.avg_pool": [case(f(2, 7, 6, 3), 3, 2, "SAME"), case(f(2, 7, 6, 3), [2, 3], 1, "VALID")],
    "nn.avg_pool1d": [case(f(2, 7, 3), 3, 2, "SAME")],
    "nn.avg_pool2d": [case(f(2, 7, 6, 3), 2, 2, "SAME")],
    "nn.avg_pool3d": [case(f(1, 4, 4, 4, 2), 3, 2, "SAME")],
    "nn.moments": [case(f(2, 3, 4), [0, 1]), case(f(2, 3), 0, keepdims=True), case(f(2, 3), [-1])],
    "nn.batch_normalization": [
        case(f(2, 3), f(3), p(3), f(3), f(3), 1e-3),
        case(f(2, 3), f(3), p(3), None, None, 0.1),
    ],
    "nn.bias_add": [case(f(2, 3, 4), f(4)), case(f(2, 3, 4), f(3), "NCHW")],
    "nn.local_response_normalization": [case(f(1, 2, 2, 8)), case(f(1, 2, 2, 8), 2, 0.5, 0.1, 0.75)],
    "nn.softmax": [case(f(2, 3)), case(f(2, 3), 0), case(f(2, 3, 4), axis=[1][0])],
    "nn.log_softmax": [case(f(2, 3)), case(f(2, 3), axis=0)],
    "nn.sigmoid_cross_entropy_with_logits": [case(p(9), _CORNERS), case(labels=p(2, 3), logits=f(2, 3))],
    "nn.weighted_cross_entropy_with_logits": [case(p(9), _CORNERS, 2.0)],
    "nn.softmax_cross_entropy_with_logits": [case(p(2, 3), f(2, 3)), case(p(2, 3), f(2, 3), 0)],
    "nn.sparse_softmax_cross_entropy_with_logits": [case(i(2), f(2, 5)), case(i(2, 3), logits=f(2, 3, 5))],
    "nn.l2_loss": [case(f(2, 3))],
    "nn.ctc_loss": [
        case(a([[1, 2, 0], [2, 2, 1]], "int32"), f(8, 2, 4), a([2, 3], "int32"), a([8, 7], "int32"), rtol=1e-4),
        case(a([[1, 2, 0]], "int32"), f(1, 8, 4), a([3], "int32"), a([8], "int32"), False, blank_index=-1, rtol=1e-4),
    ],
    "nn.compute_average_loss": [case(f(4), global_batch_size=8), case(f(4), p(4), 4)],
    # images
    "image.resize": [
        *[case(f(2, 5, 6, 3), size, "bilinear") for size in ([10, 9], [3, 4], (5, 6))],
        *[case(f(2, 5, 6, 3), [3, 4], method, antialias=True) for method in ("bilinear", "bicubic")],
        *[case(f(5, 6, 3), [7, 3], "nearest"), case(i(5, 6, 3), [9, 13], "nearest")],
        *[
            case(f(2, 5, 6, 3), [8, 11], "bicubic", rtol=2e-3),
        ],
        *[case(f(2, 5, 6, 3), [8, 11], method, rtol=1e-4) for method in ("lanczos3", "lanczos5")],
        case(a(i(5, 6, 3, high=255), "uint8"), [4, 4]),
    ],
    "image.resize_with_pad": [case(f(2, 5, 8, 3), 6, 6), case(f(5, 8, 3), 12, 9, "nearest")],
    "image.resize_with_crop_or_pad": [case(f(2, 5, 8, 3), 4, 11), case(f(5, 8, 3), 8, 3)],
    "image.pad_to_bounding_box": [case(f(5, 8, 3), 1, 2, 9, 11)],
    "image.crop_to_bounding_box": [case(f(2, 5, 8, 3), 1, 2, 3, 4)],
    "image.central_crop": [case(f(2, 5, 8, 3), 0.5), case(f(7, 8, 3), 0.3)],
    "image.crop_and_resize": [
        case(
            p(2, 5, 6, 3), a([[0, 0, 1, 1], [0.2, 0.3, 0.9, 1.2]]), a([1, 0], "int32"), [4, 3], method, gradient=False
        )
        for method in ("bilinear", "nearest")
    ],
    "image.extract_patches": [
        case(f(1, 6, 6, 2), [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], pad) for pad in ("VALID", "SAME")
    ],
    "image.flip_left_right": [case(f(2, 3, 4, 3)), case(f(3, 4, 3))],
    "image.flip_up_down": [case(f(2, 3, 4, 3))],
    "image.rot90": [case(f(3, 4, 3)), case(f(2, 3, 4, 3), 3)],
    "image.transpose": [case(f(2, 3, 4, 3))],
    "image.total_variation": [case(f(2, 3, 4, 3)), case(f(3, 4, 3))],
    "image.image_gradients": [case(f(2, 3, 4, 3))],
    "image.per_image_standardization": [case(f(2, 3, 4, 3)), case(f(3, 4, 3) * 0 + 1, gradient=False)],
    "image.psnr": [
        case(p(2, 4, 4, 3), p(2, 4, 4, 3), 1.0),
        case(a(i(4, 4, 3), "uint8"), a(i(4, 4, 3), "uint8"), 255),
    ],
    "image.ssim": [
        case(p(2, 12, 13, 3), p(2, 12, 13, 3), 1.0, rtol=1e-3),
        case(p(2, 12, 13, 3), p(2, 12, 13, 3), 1.0, filter_size=5, rtol=1e-3),
    ],
    "image.convert_image_dtype": [
        case(p(3), "uint8", gradient=False),
        case(a(i(3, high=255), "uint8"), "float32"),
        case(a([-0.5, 0.4, 2.0]), "uint8", True, gradient=False),
    ],
    "image.adjust_brightness": [case(f(2, 3, 4, 3), 0.1), case(a(i(3, 4, 3, high=255), "uint8"), 0.1)],
    "image.adjust_contrast": [case(f(2, 3, 4, 3), 1.5, gradient=False), case(a(i(3, 4, 3, high=255), "uint8"), 0.5)],
    "image.adjust_gamma": [case(p(2, 3, 3), 2.0, 1.5)],
    "image.adjust_saturation": [case(p(2, 3, 4, 3), 0.5, gradient=False), case(p(3, 4, 3), 2.0, gradient=False)],
    "image.adjust_hue": [case(p(2, 3, 4, 3), 0.3, gradient=False), case(p(3, 4, 3), -0.2, gradient=False)],
    "image.rgb_to_hsv": [
        case(p(2, 4, 3), gradient=False),
        case(a([[0, 0, 0], [1, 1, 1], [1, 0, 1]]), gradient=False),
    ],
    "image.hsv_to_rgb": [case(p(2, 4, 3), gradient=False)],
    "image.rgb_to_grayscale": [case(p(2, 4, 3)), case(a(i(3, 4, 3, high=255), "uint8"))],
    "image.grayscale_to_rgb": [case(p(2, 4, 1))],
    # checks of what is known while a program is traced
    "debugging.assert_rank": [case(f(2, 3), 2)],
    "debugging.assert_rank_at_least": [case(f(2, 3), 1)],
    "print": [case("x {is}", f(2), gradient=False)],
}

# Arguments for what cannot be on JAX.
OUT_OF_REACH: dict[str, list[Case]] = {
    "where": [case(b(3))],
    "boolean_mask": [case(f(3), b(3))],
    "unique": [case(i(4))],
    "unique_with_counts": [case(i(4))],
    "dynamic_partition": [case(f(4), i(4), 5)],
    "sequence_mask": [case(i(3))],
    "range": [case(i())],
    "cast": [case(f(2), "string")],
    "math.confusion_matrix": [case(i(4), i(4))],
    "linalg.diag_part": [case(f(3, 3), k=[0, 1])],
    "linalg.diag": [case(f(3), padding_value=1.0)],
    "nn.embedding_lookup": [case(f(5, 2), i(2), max_norm=0.5)],
    "image.convert_image_dtype": [case(a(i(3), "uint8"), "int16")],
    "slice": [case(f(4), i(1), [-1])],
    "repeat": [case(f(2), i(2))],
    "image.resize": [case(f(2, 4, 4, 3), [3, 3], "area"), case(f(4, 4, 3), [2, 3], preserve_aspect_ratio=True)],
    "image.non_max_suppression": [case(f(3, 4), f(3), 2)],
    "image.combined_non_max_suppression": [case(f(1, 3, 1, 4), f(1, 3, 1), 2, 2)],
    "py_function": [case(np.sum, [f(2)], "float32")],
    "numpy_function": [case(np.sum, [f(2)], "float32")],
    "debugging.Assert": [case(b(), [f(2)])],
    "debugging.check_numerics": [case(f(2), "message")],
    "debugging.assert_all_finite": [case(f(2), "message")],
    **{
        f"debugging.assert_{name}": [case(f(2), f(2))]
        for name in ("equal", "greater", "greater_equal", "less", "less_equal")
    },
    **{f"debugging.assert_{name}": [case(f(2))] for name in ("non_negative", "positive")},
}

_IMAGE = np.full((64, 16, 16, 3), 0.5, "float32")

# Random functions: their shape, dtype, mean and deviation are TensorFlow's.
RANDOM: dict[str, Case] = {
    "random.uniform": case([5000], -1.0, 2.0),
    "random.normal": case([5000], 1.0, 2.0),
    "random.truncated_normal": case([5000], 1.0, 2.0),
    "random.gamma": case([5000], 2.0, 3.0),
    "random.shuffle": case(f(50)),
    "random.categorical": case(a([[0.0, 1.0, 2.0]]), 5000),
    "random.stateless_uniform": case([5000], [1, 2], 0, 9, "int32"),
    "random.stateless_normal": case([5000], [1, 2]),
    "random.stateless_truncated_normal": case([5000], [1, 2]),
    "random.stateless_gamma": case([5000], [1, 2], 2.0),
    "random.stateless_categorical": case(a([[0.0, 1.0, 2.0]]), 5000, [1, 2]),
    "nn.dropout": case(np.ones([5000], "float32"), 0.3),
    "image.random_flip_left_right": case(_IMAGE),
    "image.random_flip_up_down": case(_IMAGE),
    "image.random_crop": case(_IMAGE, [64, 8, 8, 3]),
    "image.random_brightness": case(_IMAGE, 1e-3),
    "image.random_contrast": case(_IMAGE, 0.5, 1.5),
    "image.random_saturation": case(_IMAGE, 0.5, 1.5),
    "image.random_hue": case(_IMAGE, 0.1),
    "image.stateless_random_flip_left_right": case(_IMAGE, [1, 2]),
    "image.stateless_random_flip_up_down": case(_IMAGE, [1, 2]),
    "image.stateless_random_crop": case(_IMAGE, [64, 8, 8, 3], [1, 2]),
    "image.stateless_random_brightness": case(_IMAGE, 1e-3, [1, 2]),
    "image.stateless_random_contrast": case(_IMAGE, 0.5, 1.5, [1, 2]),
    "image.stateless_random_saturation": case(_IMAGE, 0.5, 1.5, [1, 2]),
    "image.stateless_random_hue": case(_IMAGE, 0.1, [1, 2]),
}
