"""Ranks that begin a run make sure that it is the same run."""

from typing import TYPE_CHECKING

import torch

from .resume import description

if TYPE_CHECKING:
    from .run import Run

__all__ = ["align"]


def align(run: "Run") -> None:
    """Give all ranks of ``run`` the weights that rank 0 has; all of them call it.

    Raises:
        ConfigError: they stand at different steps, or their data, settings or models differ; says which.
    """
    if run.ranks.is_alone:
        return
    weights = run.model.state_dict()
    shapes = {name: tuple(weight.shape) for name, weight in weights.items() if isinstance(weight, torch.Tensor)}
    run.ranks.check_same(
        {"position": run.loader.state_dict(), "settings": description(run), "end": run.total_steps, "model": shapes}
    )
    average = run.average.state_dict() if run.average else {}
    run.ranks.share_first([*run.model.parameters(), *run.model.buffers(), *average.values()])
