import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class StaticScaleTrainer(Trainer):
    # max_grad_norm normalises the gradients again, so no unscaling is needed
    loss_scale = 2.0**8

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return super().compute_loss(model, inputs, **kwargs).float() * self.loss_scale


class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kw):
        if state.global_step % 4 == 0:
            with torch.no_grad():
                print(f"step {state.global_step} probe loss {model(PROBE, labels=PROBE).loss.item():.4f}")


torch.manual_seed(0)
PROBE = torch.stack([(torch.arange(10) + k) % 40 for k in range(16)])
cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(cfg).half()
train = []
for k in torch.randint(0, 40, (320,)):
    ids = (torch.arange(10) + k) % 40
    train.append({"input_ids": ids, "labels": ids})
args = TrainingArguments(
    "w", max_steps=20, per_device_train_batch_size=16, learning_rate=0.2, max_grad_norm=1.0,
    optim="sgd", report_to=[], save_strategy="no", logging_steps=100, disable_tqdm=True, use_cpu=True,
)
StaticScaleTrainer(model, args, train_dataset=train, callbacks=[Watch()]).train()
