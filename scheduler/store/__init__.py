"""The store of a scheduler, in SQLite or PostgreSQL: rows, and functions that read and write them in a transaction.

Throughout, `tx` is the transaction, times are Unix times, `writer` is the role that writes, `fence` the token of its
lease, and `seq` the number of a row, 0 for before the first.
"""
