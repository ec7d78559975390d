# The public names of `logn.thresholds`, each imported from its module when it is first used.
from logn.thresholds.choose import Goal as Goal
from logn.thresholds.choose import operating_points as operating_points
from logn.thresholds.fold import FoldedModel as FoldedModel
from logn.thresholds.fold import fold_thresholds as fold_thresholds
from logn.thresholds.points import ClassPoint as ClassPoint
from logn.thresholds.points import FoldedPoints as FoldedPoints
from logn.thresholds.points import OperatingPoints as OperatingPoints
