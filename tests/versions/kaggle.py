"""Builds what one uploads to Kaggle, and runs the kernels here as Kaggle would, without a TPU.

    python tests/versions/kaggle.py UV PYTHON [--user NAME] [--store] [--compiled STEP.KTE]

`out/kaggle/dataset` holds the wheel, and `out/kaggle/kernels` a folder for each kernel, with the metadata that the
command `kaggle` reads. The kernels run in an environment with the versions of Kaggle's TPU image
(`environments/kaggle-tpu.txt`), without a network, with inputs that cannot be written to. Three texts are others than
those that are uploaded: the folders `/kaggle/input` and `/kaggle/working`, and `strategy_scope(replicas=8)`.
The images of the competition are not at hand: crops of the two photographs that come with scikit-learn stand in.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from run import BUILD, HERE, ROOT, CommandError, Environment, call, find_python, make

OUT = ROOT / "out" / "kaggle"
EXAMPLES = ROOT / "examples"
INPUT, WORKING = "/kaggle/input", "/kaggle/working"
IMAGE = "kaggle-tpu"
TOOLS = ("pip", "nbclient==0.11.0", "ipykernel==7.4.0")
REPLICAS = 8
DATASET = "keras-tpu-ext"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A notebook of the examples, and what it needs on Kaggle.

    Attributes:
        title: Its title there; the slug is the same with dashes.
        notebook: Its file name in the examples.
        competitions: The competitions whose data it reads.
        writes: What is in its working folder when it has ended.
        says: What is to be read in its outputs.
    """

    title: str
    notebook: str
    competitions: tuple[str, ...]
    writes: tuple[str, ...]
    says: str

    @property
    def slug(self) -> str:
        """The name of its folder, and the end of its address."""
        return self.title.lower().replace(" ", "-")

    def metadata(self, user: str) -> dict[str, object]:
        """Return what the command `kaggle kernels push` reads."""
        return {
            "id": f"{user}/{self.slug}",
            "title": self.title,
            "code_file": self.notebook,
            "language": "python",
            "kernel_type": "notebook",
            "is_private": True,
            "enable_gpu": False,
            "enable_internet": False,
            "machine_shape": "TpuV5E8",
            "dataset_sources": [f"{user}/{DATASET}"],
            "competition_sources": list(self.competitions),
            "kernel_sources": [],
            "model_sources": [],
        }


KERNELS = (
    Kernel(
        "Flowers with keras tpu ext",
        "kaggle_flowers.ipynb",
        ("tpu-getting-started",),
        ("submission.csv", "flowers.keras"),
        "8 replicas on",
    ),
    Kernel(
        "Images with keras tpu ext",
        "kaggle_image_classification.ipynb",
        (),
        ("submission.csv", "model.keras"),
        "compiles and fits",
    ),
    Kernel(
        "An old kernel with keras tpu ext",
        "kaggle_old_kernel.ipynb",
        ("tpu-getting-started",),
        ("submission.csv", "flowers.h5"),
        "REPLICAS:  8",
    ),
)


def main() -> int:
    """Build, run, and print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("uv")
    parser.add_argument("python", help="what builds the wheel")
    user = os.environ.get("KAGGLE_USERNAME", "your-name")
    parser.add_argument(
        "--user", default=user, help="your name on Kaggle, for the metadata; KAGGLE_USERNAME by default"
    )
    parser.add_argument("--store", action="store_true", help="keep what the kernels printed in examples/")
    parser.add_argument("--compiled", type=Path, help="a file of PreflightReport.save, for the dataset")
    options = parser.parse_args()
    try:
        say("building the wheel")
        build(options.uv, options.python, options.user)
        line = "" if options.compiled is None else carry(options.compiled)
        say("installing what the TPU image of Kaggle has")
        python = make_image(options.uv, options.python)
        say("writing images in place of the competition's")
        write_input(python)
        for kernel in KERNELS:
            say(kernel.notebook)
            run(kernel, python, store=options.store)
        load_elsewhere(python)
    except CommandError as failure:
        print(str(failure).strip())
        return 1
    print(f"""
To upload, with the command `kaggle`, and your name there in KAGGLE_USERNAME:
  kaggle datasets create -p {OUT.relative_to(ROOT)}/dataset
  kaggle kernels push -p {OUT.relative_to(ROOT)}/kernels/{KERNELS[0].slug}{line}""")
    return 0


def say(what: str) -> None:
    """Print what begins now."""
    print(f"{what} ...", flush=True)


def build(uv: str, python: str, user: str) -> None:
    """Write the folders that are uploaded."""
    shutil.rmtree(OUT, ignore_errors=True)
    dataset = OUT / "dataset"
    call(uv, *BUILD, "--no-create-gitignore", "--python", python, "--out-dir", dataset)
    write_json(
        dataset / "dataset-metadata.json",
        {"title": DATASET, "id": f"{user}/{DATASET}", "licenses": [{"name": "apache-2.0"}]},
    )
    for kernel in KERNELS:
        folder = OUT / "kernels" / kernel.slug
        folder.mkdir(parents=True)
        shutil.copy(EXAMPLES / kernel.notebook, folder)
        write_json(folder / "kernel-metadata.json", kernel.metadata(user))


def carry(compiled: Path) -> str:
    """Put a file of compiled programs into the dataset; return what to write in the kernel that takes it."""
    shutil.copy(compiled, OUT / "dataset")
    sha256 = hashlib.sha256(compiled.read_bytes()).hexdigest()
    file = f"{INPUT}/{DATASET}/{compiled.name}"
    return f'\nIn the kernel whose steps it has:\n  kte.strategy_scope(compiled=("{file}", "{sha256}"))'


def write_json(path: Path, content: object) -> None:
    """Write JSON that people can read."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def make_image(uv: str, python: str) -> Path:
    """Make the environment with the versions of the image and what runs a notebook; return its Python."""
    environment = Environment.read(HERE / "environments" / f"{IMAGE}.txt")
    interpreter = next(filter(None, (find_python(version, python) for version in environment.pythons)), None)
    if interpreter is None:
        raise CommandError(f"The image has Python {' or '.join(environment.pythons)}, and it was not found here.")
    environment = dataclasses.replace(environment, name=f"{IMAGE}-notebooks")
    make(environment, uv, interpreter)
    call(uv, "pip", "install", "--quiet", "--python", environment.executable("python"), *TOOLS)
    return environment.executable("python")


def write_input(python: Path) -> None:
    """Write the input folder: the dataset, and images in place of the competition's."""
    shutil.copytree(OUT / "dataset", OUT / "input" / DATASET)
    call(python, HERE / "kaggle_stand_in.py", OUT / "input" / "tpu-getting-started" / "tfrecords-jpeg-192x192")


def run(kernel: Kernel, python: Path, *, store: bool) -> None:
    """Run a kernel and print how long it took.

    Raises:
        CommandError: If a cell fails, or if a file is missing at the end.
    """
    working = OUT / "working" / kernel.slug
    working.mkdir(parents=True)
    uploaded = (OUT / "kernels" / kernel.slug / kernel.notebook).read_text(encoding="utf-8")
    here = {
        INPUT: str(OUT / "input"),
        WORKING: str(working),
        "strategy_scope(": f"strategy_scope(replicas={REPLICAS}, ",
    }
    notebook = json.loads(uploaded)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = [replaced(line, here) for line in cell["source"]]
    executed = OUT / "executed" / kernel.notebook
    executed.parent.mkdir(exist_ok=True)
    write_json(executed, notebook)
    start = time.monotonic()
    offline(python, HERE / "kaggle_execute.py", executed, working, read_only=OUT / "input")
    seconds = time.monotonic() - start
    missing = [name for name in kernel.writes if not (working / name).is_file()]
    if missing:
        raise CommandError(f"{kernel.notebook} has ended without {', '.join(missing)} in its working folder.")
    texts = {str(OUT / "input"): INPUT, str(working): WORKING, str(python.parents[1]): "/usr/local"}
    if kernel.says not in executed.read_text(encoding="utf-8"):
        raise CommandError(f"{kernel.notebook} has ended, and {kernel.says!r} is not in its outputs.")
    give_back(executed, uploaded, texts)
    if store:
        shutil.copy(executed, EXAMPLES)
    shutil.copy(executed, OUT / "kernels" / kernel.slug)
    print(f"{kernel.notebook}: {seconds:.0f} s; {', '.join(kernel.writes)}", flush=True)


def replaced(text: str, texts: dict[str, str]) -> str:
    """Return a text with each key of `texts` replaced."""
    for old, new in texts.items():
        text = text.replace(old, new)
    return text.replace(", )", ")")


def give_back(executed: Path, uploaded: str, texts: dict[str, str]) -> None:
    """Write the cells as they are uploaded into the executed notebook, and Kaggle's folders into its outputs."""
    notebook = json.loads(replaced(executed.read_text(encoding="utf-8"), texts))
    for cell, as_uploaded in zip(notebook["cells"], json.loads(uploaded)["cells"], strict=True):
        cell["source"] = as_uploaded["source"]
        cell["metadata"] = {}
    executed.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def offline(python: Path, *command: Path, read_only: Path) -> None:
    """Run a program without a network, and with a folder that cannot be written to, where Linux lets us.

    Raises:
        CommandError: With what it printed, if it fails.
    """
    settings = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        # A TPU's devices are there from the start.
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={REPLICAS}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # For the old kernel: where `KaggleDatasets` looks, and eight CPU devices that look like a TPU.
        "KTE_INPUT": str(OUT / "input"),
        "KTE_REHEARSE": str(REPLICAS),
        "IPYTHONDIR": str(OUT / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(OUT / "runtime"),
    }
    program = [str(python), *map(str, command)]
    unshare = ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        print(
            "This system allows no namespaces: the kernel could reach a network, and write to its input.", flush=True
        )
        wrapped = program
    else:
        bind = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        wrapped = [*unshare, "sh", "-c", bind, str(read_only), *program]
    # What it prints is progress; what goes wrong stands in the other stream.
    done = subprocess.run(wrapped, env=settings, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(program)}\n{done.stderr}")


def load_elsewhere(python: Path) -> None:
    """Load the saved model on Keras's other backend, where this package cannot be imported, and predict."""
    file = OUT / "working" / KERNELS[0].slug / "flowers.keras"
    program = (
        "import sys; sys.modules['keras_tpu_ext'] = None; import keras, numpy as np; "
        f"model = keras.models.load_model({str(file)!r}); "
        "print(keras.backend.backend(), type(model).__name__, "
        "model.predict(np.zeros((1, 192, 192, 3), 'float32'), verbose=0).shape)"
    )
    settings = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([python, "-c", program], env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(done.stdout + done.stderr)
    print(f"{file.name} loads without this package: {done.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main())
