"""Every test here runs with the drop-in, in an old program, but for those of what such programs give on Keras 2."""

from collections import Counter

import pytest

from kind_of_keras import RUNTIMES

if "keras3_jax" in RUNTIMES:
    from keras_tpu_ext.dropin import report

    report.mapped("lr=", "learning_rate=")


@pytest.fixture
def no_old_name_yet(monkeypatch):
    monkeypatch.setattr(report, "_USES", Counter())
    monkeypatch.setattr(report, "_AS_TODAY", set())
