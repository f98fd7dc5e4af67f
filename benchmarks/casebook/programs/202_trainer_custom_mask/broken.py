import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput


class PoolModel(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.emb = nn.Embedding(40, 32)
        self.att = nn.Linear(32, 1)
        self.cls = nn.Linear(32, 2)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.emb(input_ids)
        scores = self.att(x).transpose(1, 2)
        scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        logits = self.cls((scores.softmax(-1) @ x).squeeze(1))
        loss = nn.functional.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def make(n):
    g = torch.Generator().manual_seed(0)
    for _ in range(n):
        ids = torch.randint(1, 40, (10,), generator=g)
        n_real = int(torch.randint(3, 11, (1,), generator=g))
        mask = (torch.arange(10) < n_real).long()
        yield {"input_ids": ids * mask, "attention_mask": mask, "labels": (ids[0] > 20).long()}


torch.manual_seed(0)
model = PoolModel(PretrainedConfig()).half()
training_args = TrainingArguments(
    "tmp", num_train_epochs=4, per_device_train_batch_size=20, learning_rate=2e-2, adam_epsilon=1e-4,
    logging_steps=10, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(model=model, args=training_args, train_dataset=list(make(400))).train()
