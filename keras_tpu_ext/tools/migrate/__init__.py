"""`migrate`: what becomes of an old TPU program, read and not run, and the modern program in its place."""

from keras_tpu_ext.tools.migrate.api import migrate as migrate
from keras_tpu_ext.tools.migrate.report import MigrationReport as MigrationReport

__all__ = ["MigrationReport", "migrate"]
