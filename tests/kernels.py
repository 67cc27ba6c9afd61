"""Compiles the kernels that most tests call, before the tests begin: `python -m tests.kernels GROUP ...`.

Else each of the processes in which tests run compiles them for itself. A kernel that is missing here is compiled by the
first test that calls it, and the others wait for that.
"""
