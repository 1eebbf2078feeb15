"""Take an existing Keras model to TPUs: exact at any number of replicas, with live throughput."""

__version__ = "0.1.0"
