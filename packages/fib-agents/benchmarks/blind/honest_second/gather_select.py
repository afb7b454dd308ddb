# class: torch with checks of its arguments
import torch


class ShapeError(ValueError):
    """Raised when the arguments do not fit together."""


def _check(pages, indices, out):
    if pages.dim() != 3:
        raise ShapeError(f"pages: expected 3 dimensions, got {pages.dim()}")
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices: unexpected dtype {indices.dtype}")
    torch._check(out.size(0) == indices.size(0) * pages.size(1), lambda: f"out has {out.size(0)} rows")


def run(pages, indptr, indices, out):
    _check(pages, indices, out)
    view = out.view(indices.size(0), pages.size(1), pages.size(2))
    torch.index_select(pages, 0, indices, out=view)
