"""SQL tables of a run file, and their schema versions."""

from __future__ import annotations

#: Kinds of runs.
KINDS = ("certify", "predict", "attack", "verify", "sandwich")
#: Schema version of runs of every layout with digests of header and chunks (`pyrobust.runs.digests`).
DIGESTS_VERSION = 12
#: Schema version of new runs.
VERSION = DIGESTS_VERSION
#: Schema version of older runs of every layout that record the machine of each chunk and the order of unfinished
#: images.
MACHINES_VERSION = 11
#: Schema version of each layout in older files. Version 1 introduced certifications and predictions, 2 attacks, 3
#: verifications, 4 attacks without a distance where the model is robust, 5 sequential certifications, 7 minimum-norm
#: attacks, 8 sandwiches, 9 attacks that leave out what is proved.
SCHEMA_VERSIONS: dict[str, int] = {
    "certify": 1,
    "sequential": 5,
    "predict": 1,
    "attack": 4,
    "minimum": 7,
    "certified-first": 9,
    "verify": 3,
    "sandwich": 8,
    "smoothed-sandwich": 8,
}
#: Schema version of older runs of any layout that store the identity of their model; lower versions store none.
IDENTITY_VERSION = 6
#: Schema version of runs on threats by earlier versions, which `pyrobust.threats.readers.old_run` reads.
THREAT_VERSION = 10
#: "PyRb" in the header of every file; tells runs from SQLite files of other programs.
APPLICATION_ID = 0x50795262

#: Columns of every kind of run: name and SQLite type.
COMMON: dict[str, str] = {
    "idx": "INTEGER PRIMARY KEY",
    "label": "INTEGER NOT NULL",
    "prediction": "INTEGER NOT NULL",
    "status": "TEXT NOT NULL",
    "seconds": "REAL NOT NULL",
}
#: Further columns of each layout: a kind of run, "sequential" for sequential certifications, "minimum" for minimum-norm
#: attacks, "certified-first" for attacks that leave out what is proved, or "smoothed-sandwich" for sandwiches of a
#: smoothed classifier. Histograms are text (`encode_histograms`). x_adv (`encode_examples`) comes last: SQLite then
#: reads the other columns without loading it.
LAYOUTS: dict[str, dict[str, str]] = {
    "certify": {
        "counts0": "TEXT NOT NULL",
        "counts": "TEXT NOT NULL",
        "p_lower": "REAL NOT NULL",
        "radius": "REAL NOT NULL",
    },
    # samples: selection and sequence together. undecided: one digit for each radius, 1 if undecided. rival_upper: 1
    # without two_class.
    "sequential": {
        "counts0": "TEXT NOT NULL",
        "counts": "TEXT NOT NULL",
        "samples": "INTEGER NOT NULL",
        "p_lower": "REAL NOT NULL",
        "p_upper": "REAL NOT NULL",
        "rival_upper": "REAL NOT NULL",
        "undecided": "TEXT NOT NULL",
        "radius": "REAL NOT NULL",
    },
    "predict": {"counts": "TEXT NOT NULL", "p_value": "REAL NOT NULL"},
    "attack": {
        "adversarial": "INTEGER NOT NULL",
        "distance": "REAL",
        "broken_by": "TEXT NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
    # distance: 0 where x itself is misclassified, NULL where no adversarial example was found.
    "minimum": {
        "adversarial": "INTEGER NOT NULL",
        "distance": "REAL",
        "broken_by": "TEXT NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
    # proved: 1 where the image is proved robust and was not attacked; rows_saved: rows of the model that attacks would
    # have taken at least; proof_seconds: its share of the time of the proofs, in seconds, which counts it, too.
    "certified-first": {
        "adversarial": "INTEGER NOT NULL",
        "distance": "REAL",
        "broken_by": "TEXT NOT NULL",
        "proved": "INTEGER NOT NULL",
        "rows_saved": "INTEGER NOT NULL",
        "proof_seconds": "REAL NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
    # verdicts, stages, margins: one value for each epsilon (`pyrobust.runs.verdicts`); empty in a search for radii.
    "verify": {
        "radius": "REAL NOT NULL",
        "verdicts": "TEXT NOT NULL",
        "stages": "TEXT NOT NULL",
        "margins": "TEXT NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
    # lower, upper: 0 where the image is misclassified; upper: NULL where no adversarial example was found. margin: at
    # x_adv, under the semantics of lower, rounded up; NULL unless the bounds cross.
    "sandwich": {
        "lower": "REAL NOT NULL",
        "lower_by": "TEXT NOT NULL",
        "upper": "REAL",
        "upper_by": "TEXT NOT NULL",
        "adversarial": "INTEGER NOT NULL",
        "confidence": "REAL NOT NULL",
        "margin": "REAL",
        "x_adv": "BLOB NOT NULL",
    },
    # counts_adv, p_value: of the test at x_adv; no votes and 1 where nothing was tested.
    "smoothed-sandwich": {
        "counts0": "TEXT NOT NULL",
        "counts": "TEXT NOT NULL",
        "p_lower": "REAL NOT NULL",
        "lower": "REAL NOT NULL",
        "upper": "REAL",
        "upper_by": "TEXT NOT NULL",
        "adversarial": "INTEGER NOT NULL",
        "counts_adv": "TEXT NOT NULL",
        "p_value": "REAL NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
}
#: Unfinished images of a sequential run: their votes and confidence limits so far, from which sampling resumes.
PENDING: dict[str, str] = {
    "idx": "INTEGER PRIMARY KEY",
    "counts0": "TEXT NOT NULL",
    "counts": "TEXT NOT NULL",
    "p_lower": "REAL NOT NULL",
    "p_upper": "REAL NOT NULL",
    "rival_lower": "REAL NOT NULL",
    "rival_upper": "REAL NOT NULL",
    "seconds": "REAL NOT NULL",
}
#: Further column of unfinished images from `MACHINES_VERSION` on: the order in which sampling resumes.
PLACE = {"place": "INTEGER NOT NULL"}
#: Chunks by their first image, from `MACHINES_VERSION` on: another machine than that of the run's identity that
#: computed the chunk, or "", and the error for which it was set aside, or "". Other chunks have no row.
CHUNK = {"first": "INTEGER PRIMARY KEY", "machine": "TEXT NOT NULL", "error": "TEXT NOT NULL"}
#: The header of a run; one row.
RUN = {
    "id": "INTEGER PRIMARY KEY CHECK (id = 1)",
    "schema_version": "INTEGER NOT NULL",
    "kind": "TEXT NOT NULL",
    "parameters": "TEXT NOT NULL",
    "model": "TEXT NOT NULL",
    "model_sha256": "TEXT NOT NULL",
    "data": "TEXT NOT NULL",
    "data_sha256": "TEXT NOT NULL",
    "guarantee": "TEXT NOT NULL",
    "versions": "TEXT NOT NULL",
}
#: The identity of the model (`pyrobust.runs.identity`), as JSON; one row.
IDENTITY = {"id": "INTEGER PRIMARY KEY CHECK (id = 1)", "value": "TEXT NOT NULL"}
#: Digests of the chunks that have a row in any table, by their first image: of everything except examples, and of
#: examples.
DIGEST = {"first": "INTEGER PRIMARY KEY", "contents": "BLOB NOT NULL", "examples": "BLOB NOT NULL"}
#: The digest of the header, and the XOR of each column of `DIGEST`; one row.
SEAL = {
    "id": "INTEGER PRIMARY KEY CHECK (id = 1)",
    "header": "BLOB NOT NULL",
    "contents": "BLOB NOT NULL",
    "examples": "BLOB NOT NULL",
}


def schema_versions(layout: str) -> set[int]:
    """Return the versions of files of a layout: without the identity of the model, with it, with machines, and today's.

    >>> sorted(schema_versions("attack")), sorted(schema_versions("minimum"))
    ([4, 6, 11, 12], [7, 11, 12])
    """
    return {SCHEMA_VERSIONS[layout], max(SCHEMA_VERSIONS[layout], IDENTITY_VERSION), MACHINES_VERSION, VERSION}


def create_statements(layout: str, version: int = VERSION) -> dict[str, str]:
    """Return the CREATE statement of each table, character for character as SQLite stores it.

    >>> sorted(create_statements("certify", 1)), sorted(create_statements("sequential"))
    (['result', 'run'], ['chunk', 'digest', 'identity', 'pending', 'result', 'run', 'seal'])
    """
    tables = {"run": RUN, "result": COMMON | LAYOUTS[layout]}
    if version >= IDENTITY_VERSION:
        tables["identity"] = IDENTITY
    if layout == "sequential":
        tables["pending"] = PENDING | PLACE if version >= MACHINES_VERSION else PENDING
    if version >= MACHINES_VERSION:
        tables["chunk"] = CHUNK
    if version >= DIGESTS_VERSION:
        tables |= {"digest": DIGEST, "seal": SEAL}
    return {
        table: f"CREATE TABLE {table} ({', '.join(f'{name} {sql}' for name, sql in columns.items())})"
        for table, columns in tables.items()
    }
