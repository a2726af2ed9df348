"""``python -m pyrobust`` runs the command ``pyrobust``, even where its script is not on the path."""

from __future__ import annotations

from pyrobust.cli import main

if __name__ == "__main__":
    main()
