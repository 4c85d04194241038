"""Open a file of codes with pandas, polars and DuckDB: python examples/open_codes.py [codes.arrow]"""

import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset

from spikegcl.codes import Codes

if len(sys.argv) > 1:
    path = Path(sys.argv[1])
else:
    path = Path(tempfile.mkdtemp()) / "codes.arrow"
    spikes = np.random.default_rng(0).random((1000, 64)) < 0.3
    Codes.from_bits(spikes, ids=[f"node {n}" for n in range(1000)], channels=8).save(path)

# pandas: an Arrow IPC file is what pandas calls feather; a code is a bytes object.
frame = pd.read_feather(path)
frame["spikes"] = [int.from_bytes(code).bit_count() for code in frame["code"]]
print("pandas", frame.nlargest(3, "spikes")[["id", "spikes"]].to_dict("records"))

# polars: a code is a Binary value; grouping by it finds nodes with the same code.
nodes = pl.read_ipc(path).group_by("code").len().filter(pl.col("len") > 1)
print("polars", nodes.height, "codes belong to more than one node")

# DuckDB scans the mapped file through Arrow, here for the Hamming distance to the first node.
codes = pyarrow.dataset.dataset(path, format="ipc")
nearest = duckdb.sql("""
    select b.id, bit_count(xor(a.code::bit, b.code::bit)) as distance
    from (select * from codes limit 1) a, codes b order by distance, b.id limit 4
""")
print("DuckDB", nearest.fetchall())

# numpy: rows of packed bytes, and rows of bits.
packed = np.array([np.frombuffer(code, np.uint8) for code in frame["code"]])
print("numpy ", packed.shape, np.unpackbits(packed, axis=1, bitorder="little").mean())
