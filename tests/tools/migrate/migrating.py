"""What the tests of `migrate` share."""

from keras_tpu_ext.tools.migrate import migrate

HEAD = 'import os\n\nos.environ["KERAS_BACKEND"] = "jax"\n\n'


def migrated(text, folder, name="kernel.py"):
    """Return the report on a program, and the modern program."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    report = migrate(path, write=True)
    return report, path.with_suffix(f".modern{path.suffix}").read_text(encoding="utf-8")


def found(report):
    """Return what a report says, as lines."""
    return [f"{one.place}: {one}" for one in report.findings]
