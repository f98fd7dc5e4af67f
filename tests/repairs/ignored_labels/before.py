# ignored_labels(label=-1)
import torch


def collate(rows):
    labels = torch.full((len(rows), 8), -1)  # here
    for at, row in enumerate(rows):
        labels[at, : len(row)] = row
    return labels
