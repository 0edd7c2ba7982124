"""cell_mechanism: every mechanism that may stand between an exact cell and a released one."""

from dpsql.privacy.exponential_mechanism import RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.top_k import Picking

AddedNoise = DiscreteLaplace | DiscreteGaussian
CellMechanism = AddedNoise | RankChoice | Picking


def added(mechanism: CellMechanism) -> AddedNoise:
    """The noise that is added to a cell; a cell that is chosen has none."""
    if isinstance(mechanism, RankChoice | Picking):
        raise TypeError("nothing is added to a cell that is chosen")
    return mechanism
