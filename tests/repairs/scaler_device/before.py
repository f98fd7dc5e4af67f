# scaler_device(device="cpu")
import torch

scaler = torch.amp.GradScaler()  # here
