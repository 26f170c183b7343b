"""Second moments of features: from a batch, as a low-rank factor, banked."""

from fedpace.moments.bank import MomentBank
from fedpace.moments.factor import Moment, factor_from_features, moment_from_features

__all__ = ["Moment", "MomentBank", "factor_from_features", "moment_from_features"]
