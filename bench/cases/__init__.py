"""One module per group of cases, each with ``cases(device) -> list[Case]``."""
