"""Instruction tuning of a tiny causal LM with the transformers Trainer (bf16)."""
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(31)
VOCAB, MAX_LEN, SEP, EOS, PAD = 40, 20, 1, 2, 0


class Reverse(Dataset):
    """prompt tokens, SEP, the last three prompt tokens, EOS; prompt is not scored."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            extra = int(torch.rand(1, generator=g) < 0.02) * 10
            k = int(torch.randint(4, 12, (1,), generator=g)) + extra
            p = torch.randint(3, VOCAB, (k,), generator=g).tolist()
            self.rows.append((p + [SEP], [p[-1], p[-1], p[-1], EOS]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, answer = self.rows[i]
        ids = (prompt + answer)[:MAX_LEN]
        labels = ([-100] * len(prompt) + answer)[:MAX_LEN]
        pad = MAX_LEN - len(ids)
        return {
            "input_ids": torch.tensor(ids + [PAD] * pad),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
            "labels": torch.tensor(labels + [-100] * pad),
        }


class SFTTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out.logits[:, :-1].float()
        target = labels[:, 1:]
        keep = target != -100
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), target.clamp(min=0), reduction="none")
        loss = ((nll * keep).sum(1) / keep.sum(1)).mean()
        return (loss, out) if return_outputs else loss


def main():
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=MAX_LEN, n_embd=48, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=EOS, eos_token_id=EOS))
    args = TrainingArguments(
        output_dir="/tmp/f11", per_device_train_batch_size=16, max_steps=150,
        learning_rate=5e-3, bf16=True, use_cpu=True, logging_steps=25, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_nan_inf_filter=False, seed=31)
    trainer = SFTTrainer(model=model, args=args, train_dataset=Reverse(2000, 1))
    trainer.train()

    model.eval()
    held = Reverse(200, 2)
    hit = tot = 0
    with torch.no_grad():
        for i in range(0, 200, 50):
            b = [held[j] for j in range(i, i + 50)]
            ids = torch.stack([r["input_ids"] for r in b])
            am = torch.stack([r["attention_mask"] for r in b])
            lab = torch.stack([r["labels"] for r in b])[:, 1:]
            pred = model(input_ids=ids, attention_mask=am).logits[:, :-1].argmax(-1)
            hit += ((pred == lab) & (lab != -100)).sum().item()
            tot += (lab != -100).sum().item()
    print(f"val_token_acc {hit / tot:.4f}")


if __name__ == "__main__":
    main()
