# scaler_device(device="cpu")
import torch

scaler = torch.amp.GradScaler(device="cpu")  # here
