"""Runs a notebook in place: `python kaggle_execute.py NOTEBOOK FOLDER`, with FOLDER as its working directory.

Kernel and client talk through files, since there may be no network at all.
"""

import os
import sys
import tempfile

import nbclient
import nbformat
from jupyter_client.manager import AsyncKernelManager

path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
resources = {"metadata": {"path": folder}}
with tempfile.TemporaryDirectory() as sockets:
    manager = AsyncKernelManager(transport="ipc", ip=os.path.join(sockets, "kernel"), kernel_name="python3")
    nbclient.NotebookClient(notebook, km=manager, timeout=600, resources=resources, record_timing=False).execute()
nbformat.write(notebook, path)
