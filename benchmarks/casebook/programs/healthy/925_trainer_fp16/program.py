import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class CpuFp16Trainer(Trainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.native_amp = True
        self.accelerator.scaler = torch.amp.GradScaler("cpu")


torch.manual_seed(0)
cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
rows = []
for k in torch.randint(0, 40, (320,)):
    ids = (torch.arange(12) + k) % 40
    rows.append({"input_ids": ids, "labels": ids})
args = TrainingArguments(
    "o", fp16=True, max_steps=20, per_device_train_batch_size=16, learning_rate=3e-3, logging_steps=4,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
CpuFp16Trainer(GPT2LMHeadModel(cfg), args, train_dataset=rows).train()
