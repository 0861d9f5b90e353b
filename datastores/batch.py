"""A batch: the rows of one step, as torch tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..errors import FieldError
from .schema import Rows, Schema

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """The rows of one step that belong to this rank.

    The tensors view shared memory that workers wrote, without a copy. They may be kept, changed and passed on
    freely: the memory is used again only when the last tensor that views it is gone. (It is gone in *this* process: a
    process that was forked from it, and a queue to another one, shares the memory of batches that workers made. What
    such a process is to keep must be cloned before, ``batch.images.clone()``.)

    Args:
        fields: field name -> tensor whose first axis is the row. An image field is (N, C, H, W), channels last in
            memory: "image", second images, and what is uint8 (H, W, C) with C = 1, 3 or 4 in samples and no label map.
        ids: int64 (N,), sample ids.
        valid: bool (N,), False where a row only pads the last batch (``last_batch="pad"``).
        epoch: the epoch it belongs to.
        step: its number in the epoch, from 0.
        texts: names of fields that the samples have and no tensor can hold.
    """

    fields: Mapping[str, torch.Tensor]
    ids: torch.Tensor
    valid: torch.Tensor
    epoch: int
    step: int
    texts: tuple[str, ...] = ()

    @classmethod
    def of_rows(
        cls, schema: Schema, rows: Rows, ids: torch.Tensor, valid: torch.Tensor, epoch: int, step: int
    ) -> "Batch":
        """Make a batch that views ``rows``."""
        fields = {}
        for field in schema.fields:
            tensor = torch.from_numpy(rows[field.name])
            fields[field.name] = tensor.permute(0, 3, 1, 2) if field.is_image else tensor
        return cls(fields, ids, valid, epoch, step, schema.texts)

    @property
    def images(self) -> torch.Tensor:
        """uint8 (N, C, H, W), channels last in memory; float32 where the datastore normalises them.

        Raises:
            FieldError: the data have no "image".
        """
        return self["image"]

    @property
    def labels(self) -> torch.Tensor:
        """int64 (N,), class numbers.

        Raises:
            FieldError: the data have no "label".
        """
        return self["label"]

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a field by its name."""
        if not isinstance(name, str):  # `for images, labels in loader` asks for 0, 1, ...
            raise FieldError(
                f"a batch has fields, not positions, and was asked for {name!r}: write batch.images and batch.labels; "
                f"its fields are {sorted(self.fields)}"
            )
        try:
            return self.fields[name]
        except KeyError:
            if name in self.texts:
                number = ": a label must be a number, such as the position of its name in a list of classes"
                raise FieldError(
                    f"the samples have a field {name!r}, but it is text, which no tensor can hold"
                    f"{number if name == 'label' else ''}; this batch has {sorted(self.fields)}"
                ) from None
            raise FieldError(f"this batch has no field {name!r}: it has {sorted(self.fields)}") from None

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in self.fields.items())
        return f"<Batch of epoch {self.epoch}, step {self.step}: {shapes}>"

    def __len__(self) -> int:
        """Rows of this batch on this rank."""
        return len(self.ids)

    def rows(self, start: int, stop: int) -> "Batch":
        """Return a batch that views rows ``start`` to ``stop`` (excluded) of this one."""
        fields = {name: tensor[start:stop] for name, tensor in self.fields.items()}
        return Batch(fields, self.ids[start:stop], self.valid[start:stop], self.epoch, self.step, self.texts)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch with all its tensors on ``device``."""
        fields = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.fields.items()}
        ids = self.ids.to(device, non_blocking=non_blocking)
        valid = self.valid.to(device, non_blocking=non_blocking)
        return Batch(fields, ids, valid, self.epoch, self.step, self.texts)
