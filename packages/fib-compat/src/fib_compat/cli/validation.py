"""``fib-compat validate``: the report of `validate_dataset` on stdout and in files."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from fib_schema.files import write_output

from ..names.dataset_report import render_text_report
from ..names.dataset_validation import validate_dataset


def validate(args: argparse.Namespace) -> int:
    """Report the findings of a data set; return 1 if there are errors, else 0."""
    report = validate_dataset(
        args.dataset,
        checks=args.checks,
        op_types=args.op_types,
        definitions=args.definitions,
        disable_gpu=args.disable_gpu,
    )
    text = render_text_report(report)
    stem = Path(args.output_folder) / f"validation_{datetime.now().astimezone():%Y%m%d_%H%M%S}"
    if "stdout" in args.outputs:
        print(text, end="")
    if "json" in args.outputs:
        write_output(stem.with_suffix(".json"), f"{report.model_dump_json(indent=2)}\n".encode())
    if "text" in args.outputs:
        write_output(stem.with_suffix(".txt"), text.encode("utf-8", "backslashreplace"))
    return 1 if report.status == "failed" else 0
