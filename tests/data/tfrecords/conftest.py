"""What the tests of several files need."""

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.data.tfrecords import shard_writer


@pytest.fixture
def interrupt(photos, tmp_path, monkeypatch):
    """Return a function that writes all but the manifest, in two shards, and returns the folder."""

    def kill(*_):
        raise KeyboardInterrupt

    def write(**options):
        with monkeypatch.context() as patch:
            patch.setattr(shard_writer, "Manifest", kill)
            with pytest.raises(KeyboardInterrupt):
                kte.data.write_tfrecords(photos, tmp_path / "begun", shards=2, progress=False, **options)
        return tmp_path / "begun"

    return write


@pytest.fixture
def begun(interrupt):
    """A folder in which everything is written but the manifest."""
    return interrupt()
