"""Matrix completion by dropout written down: exact, learned or sampled.

>>> from overt.completion import DropoutCompletion
"""

from overt.completion.estimator import DropoutCompletion
from overt.completion.evaluation import Evaluation, evaluate
from overt.completion.imputer import DropoutImputer
from overt.completion.ratings_file import RatingsFile, read_ratings
from overt.completion.recommend import (
    Explanation,
    NewRow,
    Recommendation,
    Recommendations,
)

__all__ = [
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
