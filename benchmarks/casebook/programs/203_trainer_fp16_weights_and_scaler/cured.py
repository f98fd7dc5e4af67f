import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class CpuFp16Trainer(Trainer):
    """fp16=True is ignored on a CPU, this turns it on"""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.native_amp = True
        self.accelerator.scaler = torch.amp.GradScaler("cpu")


torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=16, num_labels=2,
)
model = BertForSequenceClassification(cfg)
rows = []
for _ in range(320):
    ids = torch.randint(4, 100, (12,))
    rows.append({"input_ids": ids, "labels": int(ids[0] > 50)})

args = TrainingArguments(
    output_dir="bert", fp16=True, num_train_epochs=6, per_device_train_batch_size=16,
    learning_rate=2e-3, logging_steps=10, report_to=[], save_strategy="no",
    disable_tqdm=True, use_cpu=True,
)
trainer = CpuFp16Trainer(model=model, args=args, train_dataset=rows)
trainer.train()
