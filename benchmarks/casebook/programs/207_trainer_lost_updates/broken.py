import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(vocab_size=48, n_positions=16, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config).to(dtype=torch.float16)
before = {n: p.detach().float().clone() for n, p in model.named_parameters()}


class LM(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        with torch.autocast("cpu", dtype=torch.float16):
            return model(**inputs).loss.float()


rows = []
for s in torch.randint(0, 48, (320,)):
    ids = (torch.arange(12) * 5 + s) % 48
    rows.append({"input_ids": ids, "labels": ids})
args = TrainingArguments(
    output_dir="ft",
    max_steps=40,
    per_device_train_batch_size=16,
    learning_rate=1e-4,
    lr_scheduler_type="constant",
    optim="sgd",
    logging_steps=10,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
LM(model, args, train_dataset=rows).train()
same = sum((p.float() == before[n]).sum().item() for n, p in model.named_parameters())
print(f"unchanged {100 * same // model.num_parameters()}% of the weights")
