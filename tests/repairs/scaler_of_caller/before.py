# scaler_once()
import torch


def run_round(args, data, device):
    scaler = torch.amp.GradScaler(device, enabled=args.amp)  # here
    for x in data:
        scaler.scale(x.sum()).backward()


def main(args, data):
    device = "cpu"
    for _ in range(args.rounds):
        run_round(args, data, device)
