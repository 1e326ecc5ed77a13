"""Matrix completion by dropout written down: exact, learned or sampled.

>>> from overt.completion import DropoutCompletion
"""

from __future__ import annotations

from overt.completion.answers import Completed, Explanation, NewRow, Recommendation
from overt.completion.bounds import Bound
from overt.completion.estimator import DropoutCompletion

__all__ = ["Bound", "Completed", "DropoutCompletion", "Explanation", "NewRow", "Recommendation"]
