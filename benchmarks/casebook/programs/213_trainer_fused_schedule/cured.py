import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class CpuFp16Trainer(Trainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.native_amp = True
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = super().compute_loss(model, inputs, **kwargs)
        if self.state.global_step % 4 == 0:
            print(f"step {self.state.global_step} loss {loss.item():.4f}")
        return loss


torch.manual_seed(0)
cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(cfg)
start = [p.detach().clone() for p in model.parameters()]
rows = []
for k in torch.randint(0, 40, (640,)):
    ids = (torch.arange(12) + k) % 40
    rows.append({"input_ids": ids, "labels": ids})
args = TrainingArguments(
    "o", fp16=True, max_steps=40, per_device_train_batch_size=16, learning_rate=5e-3, logging_steps=1000,
    lr_scheduler_type="cosine", optim="adamw_torch", report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True,
)
trainer = CpuFp16Trainer(model, args, train_dataset=rows)
trainer.train()
steps = int(next(iter(trainer.optimizer.optimizer.state.values()))["step"])
print("the schedule made", trainer.lr_scheduler.last_epoch - steps, "steps more than the optimizer")
