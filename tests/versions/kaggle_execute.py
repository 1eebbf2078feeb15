"""Runs a notebook in place: `python kaggle_execute.py NOTEBOOK FOLDER`, with FOLDER as its working directory.

It prints a line for each cell of code that has ended. There is no limit on the time of a cell: how long one takes is
the machine's. Kernel and client talk through files, since there may be no network at all.
"""

import os
import sys
import tempfile
import time

import nbclient
import nbformat
from jupyter_client.manager import AsyncKernelManager

path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
numbers = [number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
began = time.monotonic()


def tell(cell, cell_index, **_):
    """Print which cell has ended, and when."""
    place = numbers.index(cell_index) + 1
    print(f"  cell {place} of {len(numbers)}, {time.monotonic() - began:.0f} s", flush=True)


resources = {"metadata": {"path": folder}}
with tempfile.TemporaryDirectory() as sockets:
    manager = AsyncKernelManager(transport="ipc", ip=os.path.join(sockets, "kernel"), kernel_name="python3")
    settings = {"timeout": None, "startup_timeout": 600, "record_timing": False, "on_cell_executed": tell}
    nbclient.NotebookClient(notebook, km=manager, resources=resources, **settings).execute()
nbformat.write(notebook, path)
