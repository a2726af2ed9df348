"""Networks, sets and oracles of the tests of bounds."""
