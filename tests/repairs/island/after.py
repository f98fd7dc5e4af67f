# island(path="decoder.out")
import torch
import halfguard

model = Transformer(12)  # here
halfguard.fp32_island(model.get_submodule("decoder.out"))
