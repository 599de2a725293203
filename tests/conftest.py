"""Shared by all tests."""

import os

# Two tests at once must not fight over two cores with eight threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
