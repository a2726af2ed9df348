"""Fuzz target: read and audit bytes as a certification log. Only undocumented errors escape.

With atheris installed: python tests/fuzz/log_target.py [CORPUS] [-runs=N]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def examine(content: bytes, path: Path) -> bool:
    """Return whether the content, written to the path, is a log; if it is, check the invariants of its audit."""
    from pyrobust.auditing import audit, read_certification_log
    from pyrobust.errors import FileFormatError

    path.write_bytes(content)
    try:
        log = read_certification_log(path)
    except FileFormatError as error:
        if str(path) not in str(error) or len(str(error)) > 1000 + len(str(path)):
            raise RuntimeError("error does not name the file, or is too long") from error
        return False
    report = audit(log)
    assert len(report.counted) == len(set(log.index.tolist()))
    assert all("\n" not in finding.message and len(finding.message) < 1000 for finding in report.findings)
    json.dumps(report.to_dict(), allow_nan=False)
    return True


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["pyrobust"]):  # atheris compares top-level packages only
        import pyrobust.auditing  # noqa: F401 - only imported code is instrumented

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log_sigma0.25.tsv")
        atheris.Setup(sys.argv, lambda content: examine(content, path) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
