"""The private names of JAX that the compiler's process uses; see tests/_runtime/test_private_names.py."""

import pytest
from keras_tpu_ext._runtime.common.private_names import COMPILER

from private_names import check_import


@pytest.mark.parametrize("path", COMPILER)
def test_it_is_still_there(path):
    check_import(path)
