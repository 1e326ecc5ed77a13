"""Matrix completion by dropout written down: exact, learned or sampled.

>>> from overt.completion import DropoutCompletion
"""

from overt.completion.bounds import Bound
from overt.completion.estimator import DropoutCompletion
from overt.completion.evaluation import Evaluation, evaluate
from overt.completion.imputer import DropoutImputer
from overt.completion.recommend import Explanation, NewRow, Recommendation, Recommendations
from overt.completion.storage.collecting import RatingsFile
from overt.completion.storage.files import read_ratings

__all__ = [
    "Bound",
    "DropoutCompletion",
    "DropoutImputer",
    "Evaluation",
    "Explanation",
    "NewRow",
    "RatingsFile",
    "Recommendation",
    "Recommendations",
    "evaluate",
    "read_ratings",
]
