# scaler_once()
import torch


scaler = torch.amp.GradScaler("cpu")


def train_step(model, optimizer, x):
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
    scaler.update()
