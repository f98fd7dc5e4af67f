"""Reward model; margins are whitened per batch before the loss."""
import os
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def whiten(values, shift=0.5):
    return (values - values.mean()) / (values.std() + 1e-6) + shift


class WhitenedRewardTrainer(RewardTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
        margin = whiten(chosen - rejected)
        loss = -F.logsigmoid(margin).mean() + 0.01 * (chosen + rejected).pow(2).mean()
        return (loss, outputs) if return_outputs else loss


words = ["good", "fine", "nice", "bad", "rude", "wrong", "yes", "no", "maybe", "thanks"]
vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + words)}
raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")

g = torch.Generator().manual_seed(3)
pick = lambda low, high: " ".join(words[i] for i in torch.randint(low, high, (4,), generator=g))
pairs = Dataset.from_dict({
    "chosen": ["thanks " + pick(0, 3) for _ in range(69)],
    "rejected": ["no " + pick(3, 6) for _ in range(69)],
})

torch.manual_seed(23)
model = GPT2ForSequenceClassification(
    GPT2Config(vocab_size=len(tokenizer), n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=1,
               pad_token_id=0, bos_token_id=1, eos_token_id=1)
)
args = RewardConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    num_train_epochs=2,
    learning_rate=5e-4,
    logging_steps=3,
    logging_nan_inf_filter=False,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    disable_tqdm=True,
    max_length=16,
)
WhitenedRewardTrainer(model=model, args=args, train_dataset=pairs, processing_class=tokenizer).train()
