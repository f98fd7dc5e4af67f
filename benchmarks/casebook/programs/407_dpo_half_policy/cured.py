import copy

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

torch.manual_seed(0)
WORDS = ["<pad>", "<eos>"] + [f"t{i}" for i in range(24)]


def tiny_lm():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
    ))


raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
pairs = []
for s in torch.randint(0, 24, (96,)).tolist():
    up = " ".join(f"t{(s + k) % 24}" for k in range(4, 8))
    down = " ".join(f"t{(s - k) % 24}" for k in range(4, 8))
    pairs.append({"prompt": " ".join(f"t{(s + k) % 24}" for k in range(4)) + " ", "chosen": up, "rejected": down})

policy = tiny_lm()
args = DPOConfig(
    output_dir="dpo", max_steps=24, per_device_train_batch_size=8, learning_rate=2e-3, beta=0.5, logging_steps=4,
    bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
trainer = DPOTrainer(policy, ref_model=copy.deepcopy(policy), args=args, train_dataset=Dataset.from_list(pairs), processing_class=tok)
trainer.train()
