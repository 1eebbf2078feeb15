"""`kaggle_datasets`: where the data of a kernel is."""

from __future__ import annotations

import os
from pathlib import Path

from keras_tpu_ext.dropin import report
from keras_tpu_ext.errors import KteError

ROOT = "/kaggle/input"


class KaggleDatasets:
    """What a kernel asked for the place of its data: the bucket that a TPU read from, and now the folder."""

    def get_gcs_path(self, dataset_dir: str | None = None) -> str:
        """Return the folder of a data set.

        Args:
            dataset_dir: Its name; `None` for the only one that is attached.

        Raises:
            KteError: If there is no such folder, or more than one for `None`.
        """
        root = Path(os.environ.get("KTE_INPUT", ROOT))
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
        if dataset_dir is None and len(found) == 1:
            dataset_dir = found[0]
        folder = _folder(root, dataset_dir)
        if folder is None:
            wanted = "exactly one folder" if dataset_dir is None else f"a folder {dataset_dir!r}"
            raise KteError(
                f"get_gcs_path() needs {wanted} in {root} and found {', '.join(found) or 'none'}. Attach the data "
                "set (Add Input), or set the variable KTE_INPUT to the folder that has it."
            )
        report.told("KaggleDatasets().get_gcs_path()", str(folder))
        return str(folder)


def _folder(root: Path, name: str | None) -> Path | None:
    """Return the folder of a data set; Kaggle has put some a level deeper, under their kind or their owner."""
    if name is None:
        return None
    places = [root / name, root / "competitions" / name, *sorted(root.glob(f"datasets/*/{name}"))]
    return next((place for place in places if place.is_dir()), None)
