# island(path="decoder.out")
import torch

model = Transformer(12)  # here
