"""Fuzz the store and the build cache: ``python tests-integration/fuzz_store.py --minutes 30 --seed 1``.

A case is a short list of mutations (`support/fuzzing/mutations.py`) of a small healthy data set: values and keys of
records, bytes of files, headers of tensor files, objects of the file system, names. Each runs through all targets
(`targets.py`) in a forked child with limits of time and memory. A sixth of the time goes to damaged build caches
(`caches.py`). Findings are deduplicated by signature, minimised, and saved into the corpus, which
`test_fuzz_store.py` runs again.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
from bad_sets.case import preload
from fuzzing import caches, mutations
from fuzzing.fuzzer import Campaign, cache_work, fuzz, load, run_case, set_work

CORPUS = Path(__file__).parent / "corpus"
_CACHE_SHARE = 1 / 6


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


def main() -> int:
    """Fuzz, or run the corpus again; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="DIR")
    parser.add_argument("--only", choices=("sets", "caches"), help="fuzz only these")
    parser.add_argument("--replay", action="store_true", help="only run the cases of the corpus")
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes

    def run(campaign: Campaign, share: float) -> int:
        gc.freeze()  # a collection in a fork would copy the pages of all modules
        is_alone = arguments.only is not None
        return (
            _replayed(campaign)
            if arguments.replay
            else fuzz(campaign, seconds * (1 if is_alone else share), arguments.seed, _say)
        )

    count = 0
    if arguments.only != "caches":
        preload(has_torch=False)
        count += run(Campaign(mutations.draw, set_work, arguments.corpus / "sets"), 1 - _CACHE_SHARE)
    if arguments.only != "sets":
        preload(has_torch=True)
        prepared = Path(tempfile.mkdtemp(prefix="fuzz-cache-"))
        caches.prepare(prepared)
        count += run(Campaign(caches.draw, cache_work(prepared), arguments.corpus / "caches"), _CACHE_SHARE)
        shutil.rmtree(prepared)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
