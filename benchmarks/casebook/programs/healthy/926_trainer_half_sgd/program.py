import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, initializer_range=0.2,
)
rows = []
for _ in range(640):
    ids = torch.randint(2, 40, (5,))
    rows.append({"input_ids": ids, "labels": int((ids > 20).sum() > 2)})
args = TrainingArguments(
    "o", num_train_epochs=2, per_device_train_batch_size=32, learning_rate=0.1, optim="sgd", logging_steps=5,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(BertForSequenceClassification(cfg).half(), args, train_dataset=rows).train()
