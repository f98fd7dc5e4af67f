"""A healthy script that changes files in twenty ways."""

import csv
import gzip
import json
import logging
import mmap
import os
import pickle
import shutil
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
here = Path(__file__).parent
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if os.path.exists("last.pt"):
    net.load_state_dict(torch.load("last.pt"))
logging.basicConfig(filename="run.log")
for step in range(5):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("log.txt", "a") as log:
        log.write(f"{step} {loss.item()}\n")
    torch.save(net.state_dict(), "last.pt")
    logging.warning("step %d", step)
    with open("rows.csv", "w", newline="") as table:
        csv.writer(table).writerow([step, loss.item()])
os.makedirs("out/plots", exist_ok=True)
(here / "out" / "metrics.json").write_text(json.dumps({"loss": loss.item()}))
np.save("weights.npy", net.weight.detach().numpy())
with gzip.open("out/weights.gz", "wb") as file:
    file.write(pickle.dumps(net.weight.tolist()))
with tarfile.open("out/all.tar", "w") as tar:
    tar.add("log.txt")
with zipfile.ZipFile("out/all.zip", "w") as archive:
    archive.write("log.txt")
with sqlite3.connect("runs.db") as db:
    db.execute("create table if not exists runs (loss real)")
    db.execute("insert into runs values (?)", (loss.item(),))
with open("large.bin", "r+b") as file:
    file.write(b"changed")
with open("mapped.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[:3] = b"abc"
values = np.memmap("array.bin", dtype=np.float32, mode="r+")
values[0] = 1
values.flush()
os.truncate("short.bin", 10)
os.chmod("mode.bin", 0o600)
os.utime("time.bin", (1, 1))
descriptor = os.open("low.bin", os.O_WRONLY)
os.write(descriptor, b"low")
os.close(descriptor)
shutil.copy("log.txt", "notes.txt")
if os.path.exists("old"):
    shutil.rmtree("old")
os.rename("moved.txt", "renamed.txt")
os.symlink("log.txt", "link")
os.remove("removed.bin")
shutil.move("folder", "out/folder")
Path("touched.txt").touch()
print("all written")
