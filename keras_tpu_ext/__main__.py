"""`python -m keras_tpu_ext` is the command `keras-tpu-ext`."""

import sys

from keras_tpu_ext_command import main

sys.exit(main())
