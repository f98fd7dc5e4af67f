"""transformers Trainer: instruction tuning of a tiny GPT-2; the prompt is masked with -100."""
import logging
import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
MAXLEN, SEP = 20, 1


class Instructions(Dataset):
    def __init__(self, n=400, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            plen = int(torch.randint(3, 9, (1,), generator=g))
            if i % 100 in (60, 61, 62, 63):
                plen = 30  # long prompts: truncation leaves no answer
            prompt = torch.randint(4, 24, (plen,), generator=g)
            answer = prompt.flip(0)[:8]
            ids = torch.cat([prompt, torch.tensor([SEP]), answer])
            labels = ids.clone()
            labels[: plen + 1] = -100
            self.rows.append((ids[:MAXLEN], labels[:MAXLEN]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.zeros(len(rows), MAXLEN, dtype=torch.long)
    labels = torch.full((len(rows), MAXLEN), -100)
    mask = torch.zeros(len(rows), MAXLEN, dtype=torch.long)
    for i, (a, b) in enumerate(rows):
        ids[i, : len(a)], labels[i, : len(b)], mask[i, : len(a)] = a, b, 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class InstructTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out.logits[:, :-1].float()
        target = labels[:, 1:].reshape(-1)
        keep = (target != -100).float()
        nll = F.cross_entropy(logits.reshape(-1, logits.size(-1)), target.clamp(min=0), reduction="none")
        loss = (nll * keep).sum() / keep.sum()
        return (loss, out) if return_outputs else loss


class Log(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(f"step {state.global_step} loss {logs['loss']} grad_norm {logs.get('grad_norm')}")


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=MAXLEN, n_embd=32, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=2, eos_token_id=3))
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=1,
                             learning_rate=2e-3, bf16=True, use_cpu=True, logging_steps=10, report_to=[],
                             logging_nan_inf_filter=False, save_strategy="no", disable_tqdm=True)
    InstructTrainer(model=model, args=args, train_dataset=Instructions(), data_collator=collate,
                    callbacks=[Log()]).train()


if __name__ == "__main__":
    main()
