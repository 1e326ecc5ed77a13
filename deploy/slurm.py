"""Fit on a SLURM cluster: `python slurm.py ratings/ model/`, on a node that may submit jobs.

Needs `pip install "overt[dask,files]" dask-jobqueue`, and ratings on a disk that all nodes see.
Started again after a failure, it goes on from the checkpoint.
"""

import sys
from pathlib import Path

from overt.completion import DropoutCompletion

JOBS = 8


def main(ratings: str, out: str) -> None:
    """Fit, and save the model."""
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    settings = {"cores": 4, "processes": 1, "memory": "16GB", "walltime": "04:00:00"}
    with SLURMCluster(**settings) as cluster, Client(cluster):
        cluster.scale(jobs=JOBS)
        checkpoint = Path(out) / "checkpoint"
        model = DropoutCompletion(engine="dask")
        model.fit(ratings, checkpoint=checkpoint, resume=checkpoint.exists())
        model.save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
