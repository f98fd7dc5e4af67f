# scaler_once()
import torch


def run_round(args, data, device, scaler):
    for x in data:
        scaler.scale(x.sum()).backward()


def main(args, data):
    device = "cpu"
    scaler = torch.amp.GradScaler(device, enabled=args.amp)
    for _ in range(args.rounds):
        run_round(args, data, device, scaler=scaler)
