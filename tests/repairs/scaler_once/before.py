# scaler_once()
import torch


def train_step(model, optimizer, x):
    scaler = torch.amp.GradScaler("cpu")  # here
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
    scaler.update()
