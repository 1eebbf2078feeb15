"""The private names of JAX that the compiler's process uses; see tests/_runtime/test_private_names.py."""

import pytest

from private_name_table import COMPILER
from private_names import check_import


@pytest.mark.parametrize("path", COMPILER)
def test_it_is_still_there(path):
    check_import(path)
