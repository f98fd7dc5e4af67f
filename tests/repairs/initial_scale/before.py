# initial_scale(scale=1024.0)
import torch

scaler = torch.amp.GradScaler("cuda")  # here
