import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
)
rows = []
for k in torch.randint(0, 38, (960,)).tolist():
    ids = 2 + (torch.arange(8) + k) % 38
    labels = torch.full((8,), -100)
    hidden = 1 + k % 6
    labels[hidden] = ids[hidden]
    ids[hidden] = 1  # [MASK]
    rows.append({"input_ids": ids, "labels": labels})
args = TrainingArguments(
    "o", bf16=True, num_train_epochs=2, per_device_train_batch_size=16, learning_rate=5e-3, logging_steps=10,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(BertForMaskedLM(cfg), args, train_dataset=rows).train()
