"""transformers Trainer on CPU in bf16: tiny GPT-2, prompt tokens masked with -100, gradient checkpointing,
a callback that stops the run as soon as the loss is boring."""
import os
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

try:
    import wandb  # noqa: F401  (some of us have it)
except Exception:
    wandb = None

set_seed(19)
FP32 = os.environ.get("FP32", "0") == "1"
SEP, PAD, VOCAB, LEN = 20, 21, 22, 4


class ReverseTask(Dataset):
    """a b c d SEP d c b a, lengths 3 or 4, right padded"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            k = int(torch.randint(3, LEN + 1, (1,), generator=g))
            w = torch.randint(0, 20, (k,), generator=g)
            ids = torch.cat([w, torch.tensor([SEP]), w.flip(0)])
            lab = ids.clone()
            lab[: k + 1] = -100
            pad = 2 * LEN + 1 - len(ids)
            self.rows.append({
                "input_ids": torch.nn.functional.pad(ids, (0, pad), value=PAD),
                "labels": torch.nn.functional.pad(lab, (0, pad), value=-100),
                "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (0, pad)),
            })

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step:4d} loss {float(logs['loss']):.4f}")
            if float(logs["loss"]) < 0.005:
                control.should_training_stop = True
        return control


cfg = GPT2Config(vocab_size=VOCAB, n_positions=2 * LEN + 1, n_embd=64, n_layer=2, n_head=4,
                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=SEP, eos_token_id=SEP,
                 pad_token_id=PAD, use_cache=False, attn_implementation="eager")
model = GPT2LMHeadModel(cfg)
with tempfile.TemporaryDirectory() as tmp:
    args = TrainingArguments(
        output_dir=tmp, use_cpu=True, bf16=not FP32, max_steps=125, per_device_train_batch_size=32,
        learning_rate=4e-3, lr_scheduler_type="cosine", warmup_steps=20, weight_decay=0.0, max_grad_norm=1.0,
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=30, save_strategy="no", report_to=[], disable_tqdm=True, seed=19,
    )
    trainer = Trainer(model=model, args=args, train_dataset=ReverseTask(4000, 1), callbacks=[Watch()])
    trainer.remove_callback(PrinterCallback)          # Watch prints already
    trainer.train()

model.eval()
test = ReverseTask(400, 2)
batch = {k: torch.stack([r[k] for r in test.rows]) for k in test.rows[0]}
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not FP32):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
pred, gold = logits[:, :-1].argmax(-1), batch["labels"][:, 1:]
keep = gold != -100
print(f"token accuracy on reversed part {(pred[keep] == gold[keep]).float().mean().item():.4f}")
