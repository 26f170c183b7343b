"""Second moments of features: computed from a batch, compressed, made private, sketched, and stored in banks."""

from fedpace.moments.bank import MomentBank
from fedpace.moments.factor import Moment, compress, factor_from_features, moment_from_features
from fedpace.moments.fleet import SketchedBank
from fedpace.moments.private import PrivateMoment, gaussian_sigma, private_moment
from fedpace.moments.rescaling import RescaledPrefix
from fedpace.moments.sketch import Calibration, Sketcher

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
