"""The tables of a run's file, and their versions."""

from __future__ import annotations

#: What runs are of.
KINDS = ("certify", "predict", "attack", "verify")
#: Of each layout: certifications and predictions are as version 1 wrote them, attacks came with version 2,
#: verifications with version 3; with version 4 an attack that was withstood has no distance; sequential certifications
#: came with version 5.
SCHEMA_VERSIONS: dict[str, int] = {"certify": 1, "sequential": 5, "predict": 1, "attack": 4, "verify": 3}
#: "PyRb", in the header of every file, so that a foreign SQLite file is told apart.
APPLICATION_ID = 0x50795262

#: Columns of every kind of run: name and SQLite type.
COMMON: dict[str, str] = {
    "idx": "INTEGER PRIMARY KEY",
    "label": "INTEGER NOT NULL",
    "prediction": "INTEGER NOT NULL",
    "status": "TEXT NOT NULL",
    "seconds": "REAL NOT NULL",
}
#: The further columns of each layout, a kind or "sequential", which has more than other certifications. Histograms are
#: text, `encode_counts`; x_adv is `encode_examples` and comes last, so that SQLite need not go through it for the
#: columns before.
LAYOUTS: dict[str, dict[str, str]] = {
    "certify": {
        "counts0": "TEXT NOT NULL",
        "counts": "TEXT NOT NULL",
        "p_lower": "REAL NOT NULL",
        "radius": "REAL NOT NULL",
    },
    # samples: of selection and sequence. undecided: a digit for each of the radii, 1 where it is. The rival's limit is
    # 1 where two_class is off.
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
    # A value for each epsilon, `pyrobust.runs.verdicts`; empty where radii were searched for.
    "verify": {
        "radius": "REAL NOT NULL",
        "verdicts": "TEXT NOT NULL",
        "stages": "TEXT NOT NULL",
        "margins": "TEXT NOT NULL",
        "x_adv": "BLOB NOT NULL",
    },
}
#: Images of a sequential run in work: their votes and limits so far, from which they are gone on with.
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
#: What a run is; one row.
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


def create_statements(layout: str) -> dict[str, str]:
    """The statement that creates each table of a layout, letter for letter as the file keeps it.

    >>> sorted(create_statements("certify")), sorted(create_statements("sequential"))
    (['result', 'run'], ['pending', 'result', 'run'])
    """
    tables = {"run": RUN, "result": COMMON | LAYOUTS[layout]}
    if layout == "sequential":
        tables["pending"] = PENDING
    return {
        table: f"CREATE TABLE {table} ({', '.join(f'{name} {sql}' for name, sql in columns.items())})"
        for table, columns in tables.items()
    }
