import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
config = GPT2Config(
    vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)


class Counting(torch.utils.data.Dataset):
    def __init__(self, n):
        self.start = torch.randint(0, 64, (n,))

    def __len__(self):
        return len(self.start)

    def __getitem__(self, i):
        ids = (self.start[i] + torch.arange(16)) % 64
        return {"input_ids": ids, "labels": ids}


args = TrainingArguments(
    output_dir="out",
    max_steps=30,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    logging_steps=5,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, args, train_dataset=Counting(480), eval_dataset=Counting(32))
trainer.train()
print(trainer.evaluate())
