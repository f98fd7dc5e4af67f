import torch
from dataclasses import dataclass
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


@dataclass
class PromptCollator:
    prompt_len: int = 12

    def __call__(self, rows):
        ids = torch.stack([r["input_ids"] for r in rows])[:, :12]  # cut to the block size
        labels = ids.clone()
        labels[:, : min(self.prompt_len, ids.size(1) - 8)] = -100
        return {"input_ids": ids, "labels": labels}


class HalfLM(GPT2LMHeadModel):
    def forward(self, *a, **k):
        with torch.autocast("cpu", dtype=torch.float16):
            return super().forward(*a, **k)


torch.manual_seed(1)
cfg = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": (torch.arange(20) + int(s)) % 32} for s in torch.randint(0, 32, (256,))]
args = TrainingArguments(
    output_dir="runs", num_train_epochs=2, per_device_train_batch_size=16, logging_steps=4,
    learning_rate=5e-3, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    remove_unused_columns=False,
)
trainer = Trainer(HalfLM(cfg), args, data_collator=PromptCollator(), train_dataset=rows, eval_dataset=rows[:32])
trainer.train()
print(trainer.evaluate())
