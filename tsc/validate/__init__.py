"""Translation validation of values, in every compile: the loops that are printed mean what the te.Program means.

Both are interpreted at random (`values`): floating-point data are residues modulo a prime, in which declared monoids are exact
whatever their order, and everything else that is computed from data is a random function of its arguments. Two programs that
agree at random residues are equal but for what those laws allow, except with a chance of one in billions.
"""

from tsc.validate.check import Compared, check_values
from tsc.validate.order import check_order, check_rows

__all__ = ["Compared", "check_order", "check_rows", "check_values"]
