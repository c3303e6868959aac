"""The only code that knows LMDB and bytes: read views, one atomic batch commit, and the files around them."""
