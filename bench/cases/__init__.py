"""One module a group of cases, each with ``cases(device) -> list[Case]``."""
