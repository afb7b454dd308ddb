"""Fixture that writes call dumps in the format of FlashInfer 0.7.2: call folders and a session file."""

import json
from pathlib import Path

import attrs
import torch
from safetensors.torch import save_file


@attrs.define
class DumpMaker:
    """Dumps calls below a folder, each a millisecond after the one before."""

    root: Path
    has_safetensors: bool = False
    process: int = 77
    made: int = 0

    def dump(
        self,
        function,
        signature,
        args=(),
        kwargs=None,
        *,
        module="lib.ops",
        self_id=None,
        is_completed=True,
        is_listed=True,
    ):
        self.made += 1
        stamp = f"20260110_123456_{self.made:03d}"
        folder = self.root / f"{stamp}_pid{self.process}_{function}_call{self.made:04d}"
        folder.mkdir(parents=True)
        tensors = {}
        keyed = {**{f"arg_{n}": v for n, v in enumerate(args)}, **{f"kwarg_{n}": v for n, v in (kwargs or {}).items()}}
        plain = {key: self._recorded(value, key, tensors) for key, value in keyed.items() if not is_tensor(value)}
        tensors |= {key: value for key, value in keyed.items() if is_tensor(value)}
        self.save(folder, tensors)
        metadata = {
            "function_name": function,
            "module": module,
            "call_sequence": self.made,
            "timestamp": stamp,
            "process_id": self.process,
            "input_metadata": plain,
            "output_metadata": {},
            "tensor_info": {"input_tensor_keys": list(tensors), "output_tensor_keys": []},
            "function_signature": signature,
            "execution_status": "inputs_saved",
            "dump_dir": f"/elsewhere/{folder.name}",
            **({} if self_id is None else {"self_id": self_id}),
        }
        self.record(folder, metadata, is_listed=is_listed)
        if is_completed:
            self.record(folder, {**metadata, "execution_status": "completed"}, is_listed=is_listed)
        return folder

    def save(self, folder, tensors):
        if tensors and self.has_safetensors:
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "inputs.safetensors")
        elif tensors:
            torch.save(dict(tensors), folder / "inputs.pt")

    def record(self, folder, metadata, *, is_listed=True):
        files = [folder / "metadata.jsonl", *([self.root / "session.jsonl"] if is_listed else [])]
        for file in files:
            with file.open("a") as lines:
                lines.write(json.dumps(metadata) + "\n")

    def _recorded(self, value, key, tensors):
        kind = type(value).__name__
        if is_tensor(value):
            tensors[key] = value
            return {"type": "torch.Tensor", "shape": list(value.shape), "tensor_key": key}
        if isinstance(value, torch.dtype):
            return {"type": "torch.dtype", "value": str(value)}
        if isinstance(value, (list, tuple)):
            items = [self._recorded(item, f"{key}__{place}", tensors) for place, item in enumerate(value)]
            return {"type": kind, "length": len(value), "items": items, "truncated": False}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return {"type": kind, "repr": str(value)[:1000]}


def is_tensor(value):
    return isinstance(value, torch.Tensor)
