import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


class HalfSFT(SFTTrainer):
    def compute_loss(self, *args, **kwargs):
        with torch.autocast("cpu", dtype=torch.float16):
            return super().compute_loss(*args, **kwargs)


torch.manual_seed(0)
words = ["<pad>", "<eos>"] + [f"w{i}" for i in range(20)]
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
texts = [" ".join(f"w{(s + j) % 20}" for j in range(10)) for s in torch.randint(0, 20, (160,)).tolist()]
cfg = GPT2Config(vocab_size=22, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1)
args = SFTConfig(
    output_dir="o", max_steps=20, per_device_train_batch_size=8, learning_rate=5e-3, logging_steps=4, bf16=False,
    gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
HalfSFT(
    GPT2LMHeadModel(cfg), args=args, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tok
).train()
