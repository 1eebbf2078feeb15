"""The cases of addons.json: make_addons.py runs them on TensorFlow Addons, test_stand_ins.py on the stand-ins."""

from __future__ import annotations

import numpy as np

_RANDOM = np.random.default_rng(0)


def _normal(*shape, scale=1.0):
    return (_RANDOM.standard_normal(shape) * scale).astype("float32")


VARIABLES = {"kernel": _normal(3, 4), "bias": _normal(4), "zero": np.zeros((2,), "float32")}
GRADIENTS = [[_normal(*v.shape) for v in VARIABLES.values()] for _ in range(12)]


class Inner:
    """An optimizer inside another one."""

    def __init__(self, name, **arguments):
        self.name, self.arguments = name, arguments


class Schedule(Inner):
    """A learning rate's schedule."""


# Name and arguments.
_ADAM = Inner("Adam", learning_rate=0.1)
_SGD = Inner("SGD", learning_rate=0.1, momentum=0.9)
_DECAY = Schedule("ExponentialDecay", initial_learning_rate=0.1, decay_steps=2, decay_rate=0.5)
OPTIMIZERS = [
    ("AdamW", {"weight_decay": 0.05, "learning_rate": 0.1}),
    ("AdamW", {"weight_decay": 0.05, "learning_rate": 0.1, "amsgrad": True, "epsilon": 1e-3}),
    ("AdamW", {"weight_decay": 0.05, "learning_rate": _DECAY, "exclude_from_weight_decay": ["bias"]}),
    ("AdamW", {"weight_decay": _DECAY, "learning_rate": 0.1}),
    ("AdamW", {"weight_decay": 0.05, "learning_rate": 0.1, "clipnorm": 1.0}),
    ("RectifiedAdam", {"learning_rate": 0.1}),
    ("RectifiedAdam", {"learning_rate": 0.1, "beta_2": 0.9, "weight_decay": 0.05, "amsgrad": True}),
    ("RectifiedAdam", {"learning_rate": 0.1, "total_steps": 10, "warmup_proportion": 0.3, "min_lr": 1e-3}),
    ("RectifiedAdam", {"learning_rate": _DECAY, "weight_decay": _DECAY, "sma_threshold": 4.0, "clipvalue": 0.5}),
    ("LAMB", {"learning_rate": 0.1}),
    ("LAMB", {"learning_rate": 0.1, "weight_decay": 0.05, "exclude_from_weight_decay": ["bias"]}),
    ("LAMB", {"learning_rate": 0.1, "weight_decay": 0.05, "exclude_from_layer_adaptation": ["kernel"]}),
    ("Lookahead", {"optimizer": _ADAM, "sync_period": 3, "slow_step_size": 0.4}),
    ("Lookahead", {"optimizer": Inner("RectifiedAdam", learning_rate=0.1, weight_decay=0.01)}),
    ("Lookahead", {"optimizer": Inner("SGD", learning_rate=_DECAY), "sync_period": 2}),
    ("Lookahead", {"optimizer": Inner("AdamW", weight_decay=0.05, learning_rate=0.1), "sync_period": 2}),
    ("SWA", {"optimizer": _SGD, "start_averaging": 2, "average_period": 3}),
    ("SWA", {"optimizer": _ADAM, "average_period": 5}),
    ("SWA", {"optimizer": Inner("Lookahead", optimizer=_ADAM, sync_period=2), "average_period": 2}),
]


def optimizer(addons, optimizers, schedules, name, arguments):
    """Return an optimizer, with those inside it."""

    def made(value):
        if isinstance(value, Schedule):
            return getattr(schedules, value.name)(**value.arguments)
        if isinstance(value, Inner):
            return optimizer(addons, optimizers, schedules, value.name, value.arguments)
        return value

    place = optimizers if name in ("Adam", "SGD") else addons.optimizers
    return getattr(place, name)(**{key: made(value) for key, value in arguments.items()})


_LABELS = np.array([0, 1, 1, 2, 0, 2, 1, 0], "int32")
_SCORES = _RANDOM.random((8, 3)).astype("float32")
_SCORES[0] = 0.0
DATA = {
    "labels": _LABELS,
    "one_hot": np.eye(3, dtype="float32")[_LABELS],
    "embeddings": _normal(8, 5),
    "close": np.repeat(np.round(_normal(4, 5) * 4) / 4, 2, axis=0),  # exact, so that distances are zero or not
    "logits": _normal(8, 3),
    "scores": _SCORES,
    "many": (_RANDOM.random((8, 3)) < 0.4).astype("float32"),
    "binary": np.array([[0], [1], [1], [0], [1], [0], [1], [0]], "float32"),
    "chances": np.array([[0.1], [0.8], [0.4], [0.6], [0.9], [0.2], [0.7], [0.5]], "float32"),
    "ranks": np.array([[1.2], [0.4], [1.6], [-2.2], [0.1], [2.4], [0.9], [0.6]], "float32"),
    "weights": np.array([1, 2, 0.5, 1, 0, 3, 1, 1], "float32"),
    "real": _normal(8, 2),
    "predicted": _normal(8, 2),
    "x": np.concatenate([_normal(3, 4), np.array([[-0.5, 0.0, 0.5, 30.0]], "float32")]),
    "features": _normal(2, 6),
    "maps": _normal(2, 3, 4, 6),
    "image": _RANDOM.integers(0, 256, (7, 9, 3)).astype("uint8"),
    "images": _RANDOM.random((2, 7, 9, 3)).astype("float32"),
    "gray": _RANDOM.random((7, 9)).astype("float32"),
}

# Name, arguments, labels, predictions.
LOSSES = [
    ("SigmoidFocalCrossEntropy", {}, "many", "scores"),
    ("SigmoidFocalCrossEntropy", {"from_logits": True, "alpha": 0.4, "gamma": 1.5}, "many", "logits"),
    ("SigmoidFocalCrossEntropy", {"from_logits": True, "gamma": 0.0, "reduction": "sum"}, "many", "logits"),
    ("SigmoidFocalCrossEntropy", {"reduction": "sum_over_batch_size"}, "one_hot", "scores"),
    ("TripletSemiHardLoss", {}, "labels", "embeddings"),
    ("TripletSemiHardLoss", {"margin": 0.3, "distance_metric": "squared-L2"}, "labels", "embeddings"),
    ("TripletSemiHardLoss", {"margin": 0.3, "distance_metric": "angular"}, "labels", "embeddings"),
    ("TripletSemiHardLoss", {}, "labels", "close"),
    ("TripletHardLoss", {}, "labels", "embeddings"),
    ("TripletHardLoss", {"soft": True, "distance_metric": "squared-L2"}, "labels", "embeddings"),
    ("TripletHardLoss", {"margin": 0.3, "distance_metric": "angular"}, "binary", "embeddings"),
    ("TripletHardLoss", {}, "labels", "close"),
]

# Name, arguments, and batches: labels, predictions, weights.
_TWICE = [("one_hot", "scores", None), ("one_hot", "logits", None)]
METRICS = [
    ("F1Score", {"num_classes": 3}, _TWICE),
    ("F1Score", {"num_classes": 3, "average": "macro"}, _TWICE),
    ("F1Score", {"num_classes": 3, "average": "micro"}, [("one_hot", "scores", "weights"), *_TWICE]),
    ("F1Score", {"num_classes": 3, "average": "weighted"}, _TWICE),
    ("F1Score", {"num_classes": 3, "average": "macro", "threshold": 0.5}, [("many", "scores", None)]),
    ("F1Score", {"num_classes": 1, "threshold": 0.5}, [("binary", "chances", None)]),
    ("FBetaScore", {"num_classes": 3, "beta": 2.0}, [("many", "scores", "weights")]),
    ("FBetaScore", {"num_classes": 3, "beta": 0.5, "average": "weighted", "threshold": 0.3}, _TWICE),
    ("CohenKappa", {"num_classes": 3}, [("one_hot", "scores", "weights"), *_TWICE]),
    ("CohenKappa", {"num_classes": 3, "weightage": "quadratic", "sparse_labels": True}, [("labels", "scores", None)]),
    ("CohenKappa", {"num_classes": 3, "weightage": "linear"}, _TWICE),
    ("CohenKappa", {"num_classes": 2}, [("binary", "chances", None)]),
    (
        "CohenKappa",
        {"num_classes": 3, "weightage": "quadratic", "sparse_labels": True, "regression": True},
        [("labels", "ranks", None)],
    ),
]

# Name, arguments, inputs, and whether the weights are filled.
LAYERS = [
    ("GroupNormalization", {"groups": 3}, "maps", "filled"),
    ("GroupNormalization", {"groups": 2, "axis": -1, "epsilon": 1e-5}, "features", "filled"),
    ("GroupNormalization", {"groups": 2, "axis": 2, "center": False}, "maps", "filled"),
    ("GroupNormalization", {"groups": 6, "scale": False}, "maps", "filled"),
    ("InstanceNormalization", {}, "maps", "filled"),
    ("InstanceNormalization", {"axis": 3, "epsilon": 1e-5}, "maps", "filled"),
    ("WeightNormalization", {"layer": Inner("Dense", units=4)}, "features", "filled"),
    (
        "WeightNormalization",
        {"layer": Inner("Dense", units=4, activation="relu"), "data_init": False},
        "maps",
        "filled",
    ),
    ("WeightNormalization", {"layer": Inner("Conv2D", filters=4, kernel_size=2)}, "maps", "filled"),
    (
        "WeightNormalization",
        {"layer": Inner("Conv2D", filters=4, kernel_size=2, use_bias=False), "data_init": False},
        "maps",
        "filled",
    ),
]


def layer(addons, layers, name, arguments, shape):
    """Return a layer; the one inside it is built and filled, as Addons keeps its first weights."""
    arguments = dict(arguments)
    if "layer" in arguments:
        inner = arguments["layer"]
        arguments["layer"] = getattr(layers, inner.name)(**inner.arguments)
        arguments["layer"].build(shape)
        fill(arguments["layer"])
    return getattr(addons.layers, name)(**arguments)


def fill(layer):
    """Give the weights that are numbers values that depend on their names and places only."""
    variables = {v.name.split("/")[-1].split(":")[0]: v for v in layer.trainable_variables}
    for name, variable in variables.items():
        values = np.sin(np.arange(int(np.prod(variable.shape))) + 1.3 + ord(name[0])) + 0.2
        variable.assign(values.reshape(variable.shape).astype("float32"))


ACTIVATIONS = [
    ("mish", {}),
    ("gelu", {}),
    ("gelu", {"approximate": False}),
]

# Name, image, arguments.
IMAGES = [
    ("rotate", "image", {"angles": 0.4}),
    ("rotate", "images", {"angles": [0.4, -1.1], "interpolation": "bilinear"}),
    ("rotate", "images", {"angles": 0.7, "fill_mode": "reflect", "interpolation": "bilinear"}),
    ("rotate", "gray", {"angles": 2.0, "fill_mode": "nearest"}),
    ("rotate", "images", {"angles": 0.5, "fill_value": 0.5}),
    ("transform", "image", {"transforms": [1.0, 0.2, -1.0, 0.1, 1.0, 0.5, 0.0, 0.0]}),
    (
        "transform",
        "images",
        {"transforms": [1.0, 0, 0, 0, 1, 0, 0.01, 0], "output_shape": [5, 6], "fill_mode": "wrap"},
    ),
    ("cutout", "images", {"mask_size": (2, 4), "offset": (3, 4), "constant_values": 1}),
    ("random_cutout", "images", {"mask_size": (20, 20)}),
]
