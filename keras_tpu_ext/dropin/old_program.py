"""Imported in place of `keras_tpu_ext.dropin`, lets all that both Keras versions have mean what it did in old Keras.

```python
import keras_tpu_ext.dropin.old_program  # first, before TensorFlow and Keras
```

The drop-in itself waits for the first old name, which a program that `migrate` has written may not have.
"""

from keras_tpu_ext.dropin import report

report.mapped("import keras_tpu_ext.dropin.old_program", "old meanings from the first line on")
