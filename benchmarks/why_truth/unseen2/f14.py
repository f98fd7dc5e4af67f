"""Instruction tuning of a tiny Llama: the loss counts only the answer tokens."""
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

VOCAB = 24
MAX_LENGTH = 24
IGNORE = -100
SEP = 1
END = 2


def make_example(g):
    """The prompt is a list of numbers, the answer counts on from the last one."""
    n = int(torch.randint(4, 24, (1,), generator=g))
    prompt = torch.randint(3, VOCAB, (n,), generator=g).tolist() + [SEP]
    last = prompt[-2]
    answer = [3 + (last - 3 + k) % (VOCAB - 3) for k in (1, 2, 3)] + [END]
    return prompt, answer


def encode(prompt, answer):
    ids = (prompt + answer)[:MAX_LENGTH]
    labels = ([IGNORE] * len(prompt) + answer)[:MAX_LENGTH]
    return ids, labels


class Instructions(Dataset):
    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            prompt, answer = make_example(g)
            self.rows.append(encode(prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, labels = self.rows[i]
        gap = MAX_LENGTH - len(ids)
        return {
            "input_ids": torch.tensor(ids + [0] * gap),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * gap),
            "labels": torch.tensor(labels + [IGNORE] * gap),
        }


class AnswerTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1].float()
        target = labels[:, 1:]
        token_loss = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), target, ignore_index=IGNORE, reduction="none"
        )
        counted = (target != IGNORE).float()
        loss = (token_loss.sum(1) / counted.sum(1)).mean()
        return (loss, outputs) if return_outputs else loss


if __name__ == "__main__":
    set_seed(3)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=MAX_LENGTH, bos_token_id=SEP, eos_token_id=END, pad_token_id=0,
    ))
    args = TrainingArguments(
        output_dir="/tmp/instructions", per_device_train_batch_size=8, max_steps=80, learning_rate=1e-2,
        logging_steps=10, logging_nan_inf_filter=False, bf16=True, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True,
    )
    AnswerTrainer(model=model, args=args, train_dataset=Instructions(640)).train()
