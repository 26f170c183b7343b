"""Second moments of features: computed from a batch, compressed, made private, sketched, and stored in banks."""

from fedpace.moments.bank import MomentBank, RescaledPrefix
from fedpace.moments.factor import (
    Moment,
    PrivateMoment,
    compress,
    factor_from_features,
    gaussian_sigma,
    moment_from_features,
    private_moment,
)
from fedpace.moments.sketched import Calibration, SketchedBank, Sketcher

__all__ = [
    "Calibration",
    "Moment",
    "MomentBank",
    "PrivateMoment",
    "RescaledPrefix",
    "SketchedBank",
    "Sketcher",
    "compress",
    "factor_from_features",
    "gaussian_sigma",
    "moment_from_features",
    "private_moment",
]
