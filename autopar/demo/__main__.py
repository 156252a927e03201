"""``python -m autopar.demo``: plan a GPT-2, train it on local processes, compare with plain PyTorch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 0 if the loss fell and both runs agree."""
    # Before torch is imported, here and in every process that is started.
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    options = _options(argv)
    try:
        from autopar.cli.parse import parse_mesh
        from autopar.demo.report import demonstrate
        from autopar.demo.training import Task

        mesh, sizes = options
        demonstrate(Task(mesh=None if mesh is None else parse_mesh(mesh), **sizes))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the last resort: any failure becomes a block and a code)
        from autopar.cli.failure import failure_of, report

        failure = failure_of(error)
        report(failure, error, as_json=False, debug=False)
        return failure.exit_code
    return 0


def _options(argv: Sequence[str] | None) -> tuple[str | None, dict[str, int]]:
    """The mesh as written, and the sizes that were given."""
    parser = argparse.ArgumentParser(prog="python -m autopar.demo", description=__doc__)
    sizes = {
        "steps": "optimizer steps", "batch-size": "sequences in a global batch", "seq-len": "bytes in a sequence",
        "layers": "decoder layers", "width": "hidden size", "heads": "attention heads", "processes": "local processes",
    }  # fmt: skip
    for name, text in sizes.items():
        parser.add_argument(f"--{name}", type=int, help=text, default=argparse.SUPPRESS)
    parser.add_argument("--mesh", help="pin the mesh, such as dp=2; default: searched")
    given = vars(parser.parse_args(argv))
    return given.pop("mesh"), given


if __name__ == "__main__":
    sys.exit(main())
