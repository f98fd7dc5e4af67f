import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

PAD = 0


def build_corpus(n, vocab):
    """Mostly short lines; a few pasted articles."""
    g = torch.Generator().manual_seed(77)
    corpus = []
    for i in range(n):
        length = 220 if 112 <= i < 120 else int(torch.randint(6, 20, (1,), generator=g))
        corpus.append({"input_ids": torch.randint(1, vocab, (length,), generator=g)})
    return corpus


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True, padding_value=PAD)
    labels = ids.masked_fill(ids == PAD, -100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


class ZLossTrainer(Trainer):
    """Adds PaLM's z-loss, to keep the logits from drifting."""

    def __init__(self, *args, z_weight=1e-4, **kwargs):
        super().__init__(*args, **kwargs)
        self.z_weight = z_weight

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(**inputs)
            log_z = torch.logsumexp(outputs.logits, dim=-1)
            mask = inputs["attention_mask"].to(log_z.dtype)
            z_total = (log_z.square() * mask).sum()
            loss = outputs.loss + self.z_weight * z_total / mask.numel()
        return (loss, outputs) if return_outputs else loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--lines", type=int, default=200)
    opts = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=opts.vocab, n_positions=256, n_embd=opts.dim, n_layer=1, n_head=2,
                        bos_token_id=1, eos_token_id=2)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=1,
                             learning_rate=1e-3, warmup_steps=5, logging_steps=1, logging_nan_inf_filter=False,
                             save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = ZLossTrainer(model=GPT2LMHeadModel(config), args=args,
                           train_dataset=build_corpus(opts.lines, opts.vocab), data_collator=collate)
    trainer.train()


if __name__ == "__main__":
    main()
