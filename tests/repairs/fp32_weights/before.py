# fp32_weights(dtype="float16")
import torch

model = Net(3).half()  # here
out = model(x)
