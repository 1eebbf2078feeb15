"""When two arrays of float32 are the same but for the order of sums."""

import numpy as np


def assert_close(got, expected, tolerance=1e-5, message=""):
    """Fail where elements differ by more than a part of themselves, or of the largest one, or of 1 if that is more.

    A small element may be what is left of larger ones: its error is a part of theirs.
    """
    largest = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * largest, err_msg=message)
