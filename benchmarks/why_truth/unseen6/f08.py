"""Tiny Llama causal LM trained with the HF Trainer on a synthetic grammar."""
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(7)

VOCAB, SEQ = 64, 32


class Grammar(Dataset):
    """Every token is a fixed function of the two before it, with a bit of noise."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randint(0, VOCAB, (VOCAB,), generator=torch.Generator().manual_seed(99))
        x = torch.randint(0, VOCAB, (n, SEQ), generator=g)
        for t in range(1, SEQ):
            keep = torch.rand(n, generator=g) < 0.85
            x[:, t] = torch.where(keep, table[x[:, t - 1]], x[:, t])
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.x[i]}


config = LlamaConfig(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=SEQ,
    initializer_range=0.1,
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
print(f"{sum(p.numel() for p in model.parameters()) / 1e3:.0f}k parameters")

args = TrainingArguments(
    output_dir="/tmp/f08_out",
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    num_train_epochs=1,
    learning_rate=4e-4,
    lr_scheduler_type="linear",
    warmup_steps=20,
    weight_decay=0.0,
    max_grad_norm=1.0,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=True,
    disable_tqdm=True,
    seed=7,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Grammar(1920, 1),
    eval_dataset=Grammar(256, 2),
)
trainer.train()
metrics = trainer.evaluate()
print(f"val_loss {metrics['eval_loss']:.4f}")
