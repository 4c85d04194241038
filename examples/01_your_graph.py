"""Your graph: CSV files in, a file of codes out, and that file in pandas, polars and DuckDB."""

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset

from spikegcl import SpikeGCLEmbedder, read_graph

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)

# Tables as you may have them: who wrote with whom, and what is known of each of 300 people in three teams.
rng = np.random.default_rng(0)
people = np.array([f"person {n}" for n in range(300)])
team = rng.integers(0, 3, 300)
source, target = rng.integers(0, 300, (2, 6000))
kept = (source != target) & ((team[source] == team[target]) | (rng.random(6000) < 0.1))
skills = (rng.random((300, 24)) < np.where(np.arange(24) % 3 == team[:, None], 0.4, 0.1)).astype(int)
pd.DataFrame({"source": people[source], "target": people[target]})[kept].to_csv(folder / "edges.csv", index=False)
pd.DataFrame(skills, people, [f"skill {n}" for n in range(24)]).to_csv(folder / "skills.csv", index_label="id")

# Ids stay as they are. Features are optional: without them, columns are made from the edges.
graph = read_graph(folder / "edges.csv", features=folder / "skills.csv")
codes = SpikeGCLEmbedder(bits=128).fit(graph).codes_
codes.save(folder / "codes.arrow")
print(graph, "->", len(codes), "codes of", codes.bits, "bits")

# pandas: an Arrow IPC file is what pandas calls feather; a code is a bytes object.
frame = pd.read_feather(folder / "codes.arrow")
frame["spikes"] = [int.from_bytes(code).bit_count() for code in frame["code"]]
print("pandas", frame.nlargest(3, "spikes")[["id", "spikes"]].to_dict("records"))

# polars: a code is a Binary value; grouping by it finds nodes with the same code.
shared = pl.read_ipc(folder / "codes.arrow").group_by("code").len().filter(pl.col("len") > 1)
print("polars", shared.height, "codes belong to more than one person")

# DuckDB scans the mapped file through Arrow, here for the Hamming distance to the first person.
stored = pyarrow.dataset.dataset(folder / "codes.arrow", format="ipc")
nearest = duckdb.sql("""
    select b.id, bit_count(xor(a.code::bit, b.code::bit)) as distance
    from (select * from stored limit 1) a, stored b order by distance, b.id limit 4
""")
print("DuckDB", nearest.fetchall())

# numpy: rows of packed bytes, little-endian, and rows of bits.
packed = np.array([np.frombuffer(code, np.uint8) for code in frame["code"]])
spikes = np.unpackbits(packed, axis=1, count=codes.bits, bitorder="little")
print("numpy ", packed.shape, "bytes,", spikes.shape, f"bits, {100 * spikes.mean():.0f} % of them 1")
