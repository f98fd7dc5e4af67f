# ignore_label(label=255)
from torch import nn

criterion = nn.CrossEntropyLoss()


def train(model, data):
    for x, y in data:
        criterion(model(x), y).backward()  # here
