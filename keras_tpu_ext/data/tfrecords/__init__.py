"""TFRecord shards: writing them, and reading them fast."""
