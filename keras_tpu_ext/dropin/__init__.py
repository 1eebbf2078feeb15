"""Run an old TPU program on Keras 3 and JAX, unchanged but for its first line.

```python
import keras_tpu_ext.dropin  # first, before TensorFlow and Keras
```

What was mapped is printed at the program's end; `summary()` returns it before. What has no counterpart on JAX raises
`OutOfReachError`, which names the line to write. docs/dropin.md has all names.
"""

from keras_tpu_ext.dropin import bootstrap as _bootstrap

_bootstrap.check_backend()

from keras_tpu_ext.dropin import install as _install  # noqa: E402, Keras is on JAX, now that it was checked
from keras_tpu_ext.dropin.errors import OutOfReachError as OutOfReachError  # noqa: E402
from keras_tpu_ext.dropin.report import summary as summary  # noqa: E402

_install.install()

__all__ = ["OutOfReachError", "summary"]
