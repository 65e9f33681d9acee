"""The words benchgate thinks in: plain frozen values, no I/O, no clock."""
