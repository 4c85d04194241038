"""Errors a user can act on: what is wrong, where, and what to do next."""

from __future__ import annotations


class SpikeGCLError(Exception):
    """Base of every error this package raises on purpose; the command line prints it without a traceback."""


class GraphError(SpikeGCLError):
    """The graph itself is not usable: empty, wrong lengths, ids that do not match."""


class FeatureError(SpikeGCLError):
    """Features are missing, not finite, or do not fit the graph or the model."""


class LabelError(SpikeGCLError):
    """Labels or splits are missing, too few, or do not fit the graph."""


class ReadError(SpikeGCLError):
    """A file cannot be read or does not hold what its name promises."""


class DataMissingError(SpikeGCLError):
    """A named dataset's raw files are neither in the data root nor downloadable."""


class ConfigError(SpikeGCLError):
    """An option has a value that cannot work."""


class PresetMissingError(ConfigError):
    """A method has no settings of that preset for that dataset."""


class CodesError(SpikeGCLError):
    """A code file or an operation on codes is invalid."""


class WriteError(SpikeGCLError, OSError):
    """A file cannot be written."""


class TrainingError(SpikeGCLError):
    """A training that cannot go on."""


class RunError(SpikeGCLError):
    """A run folder is missing, incomplete or in the way."""
