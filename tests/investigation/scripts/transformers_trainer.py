"""transformers: a Trainer whose model takes the logarithm of a probability that is 0."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Config(PretrainedConfig):
    model_type = "tiny"


class Net(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x=None, labels=None):
        p = torch.softmax(self.head(self.layer(x)), -1)
        loss = -torch.log(p.gather(1, labels[:, None])).mean()  # culprit
        return {"loss": loss, "logits": p}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(16, generator=generator)
        return {"x": x * (1 if not 40 <= i < 48 else 3e4), "labels": i % 4}


arguments = TrainingArguments(
    "out", max_steps=20, per_device_train_batch_size=8, bf16=True, use_cpu=True, report_to=[]
)
Trainer(Net(Config()), arguments, train_dataset=Data()).train()
