"""Kernels for one device, with `with strategy_scope(replicas=8):` added and nothing else: the same numbers."""

import contextlib
import importlib

import keras
import numpy as np
import pytest

from closeness import assert_close
from kernels import programs

pytestmark = [pytest.mark.exhaustive, pytest.mark.runtimes("keras3_tf", "keras3_jax")]


def assert_same(got, expected, tolerance):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.isfinite(values).all()
        assert_close(got[name], values, tolerance, message=name)


def both(kernel, scope8, *arguments):
    """Return what `kernel` prints in the scope, and on one device."""
    return [kernel(block, *arguments) for block in (scope8, contextlib.nullcontext())]


def test_images_and_a_submission(scope8, tmp_path):
    weights = tmp_path / "pretrained.weights.h5"
    programs.pretrained(weights)
    outcomes, submissions = [], []
    for name, block in (("scope", scope8), ("plain", contextlib.nullcontext())):
        folder = tmp_path / name
        folder.mkdir()
        outcomes.append(programs.flowers(block, folder, weights))
        submissions.append((folder / "submission.csv").read_text())
    assert_same(*outcomes, 1e-5)
    assert submissions[0] == submissions[1]
    assert submissions[0].count("\n") == 30


def test_a_table_in_five_folds(scope8, tmp_path):
    assert_same(*both(programs.folds, scope8, tmp_path), 1e-4)


@pytest.fixture
def texts(shared_data_or_none):
    """Texts of 5 to 24 words of Reuters, or made up where that is not, and their topics."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 25, size=203)
    if shared_data_or_none is None:
        ids, topics = rng.integers(1, 1000, size=(203, 24)), rng.integers(0, 46, size=203)
    else:
        with np.load(shared_data_or_none / "reuters.npz", allow_pickle=True) as file:
            ids, topics = file["x"][:203], file["y"][:203]
    x = np.zeros((203, 24), "int32")
    for row, words, length in zip(x, ids, lengths, strict=True):
        known = [word for word in words if word < 1000][:length]
        row[: len(known)] = known
    return x, np.asarray(topics)


def test_a_transformer_for_texts(scope8, texts):
    assert_same(*both(programs.texts, scope8, texts), 1e-4)


@pytest.mark.filterwarnings("ignore:.* has a step of its own, so:UserWarning")
def test_a_gan(scope8):
    gan = importlib.import_module(f"kernels.gan_{keras.backend.backend()}")
    assert_same(*both(programs.adversaries, scope8, gan.GAN), 1e-4)
