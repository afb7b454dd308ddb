"""Fuzz the store and the build cache: ``python tests-integration/fuzz_store.py --minutes 30 --seed 1``.

A case is a short list of mutations (`support/fuzzing/mutations.py`) of a small healthy data set: values and keys of
records, bytes of files, headers of tensor files, objects of the file system, names. Each runs through all targets
(`targets.py`) in a forked child with limits of time and memory. A part of the time goes to signed sets (`signed.py`)
and to damaged build caches (`caches.py`). Findings are deduplicated, minimised, and saved into the corpus, which
`test_fuzz_store.py` runs again.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
from bad_sets.case import preload
from fuzzing import caches, mutations, signed
from fuzzing.fuzzer import Campaign, fuzz, load, prepared_work, run_case, set_work

CORPUS = Path(__file__).parent / "corpus"
_SHARES = {"sets": 0.7, "signed": 0.15, "caches": 0.15}
"""Targets of fuzzing, and the share of time of each; caches last, because they import torch."""


def _say(text: str) -> None:
    print(text, flush=True)


def _replayed(campaign: Campaign) -> int:
    count = 0
    for path in sorted(campaign.corpus.glob("*.json")):
        for found in run_case(campaign.make_work(load(path)["mutations"])):
            count += 1
            _say(f"{path.name}: {found.signature}\n{found.details}")
    _say(f"{campaign.corpus.name}: {count} problems in the corpus")
    return count


def _prepared(prepare: Callable[[Path], None]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-prepared-"))
    prepare(folder)
    return folder


def main() -> int:
    """Fuzz, or run the corpus again; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="DIR")
    parser.add_argument("--only", choices=tuple(_SHARES), help="fuzz only these")
    parser.add_argument("--replay", action="store_true", help="only run the cases of the corpus")
    arguments = parser.parse_args()
    count = 0
    for name, share in _SHARES.items():
        if arguments.only not in (None, name):
            continue
        if name == "signed" and importlib.util.find_spec("securesystemslib") is None:
            _say("signed: left out, needs the extra 'signing' of fib-schema")
            continue
        preload(has_torch=name == "caches")
        campaign, prepared = _campaign(name, arguments.corpus / name)
        gc.freeze()  # a collection in a fork would copy the pages of all modules
        if arguments.replay:
            count += _replayed(campaign)
        else:
            seconds = 60 * arguments.minutes * (share if arguments.only is None else 1)
            count += fuzz(campaign, seconds, arguments.seed, _say)
        if prepared is not None:
            shutil.rmtree(prepared)
    return int(count > 0)


def _campaign(name: str, corpus: Path) -> tuple[Campaign, Path | None]:
    if name == "sets":
        return Campaign(mutations.draw, set_work, corpus), None
    if name == "signed":
        prepared = _prepared(signed.prepare)
        return Campaign(signed.draw, prepared_work("signed", signed.run, prepared), corpus), prepared
    prepared = _prepared(caches.prepare)
    return Campaign(caches.draw, prepared_work("build", caches.run, prepared), corpus), prepared


if __name__ == "__main__":
    sys.exit(main())
