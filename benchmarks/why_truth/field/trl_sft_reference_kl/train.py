import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def make_tokenizer():
    vocab = {word: i for i, word in enumerate(["<pad>", "<eos>", *map(str, range(24))])}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


class KLTrainer(SFTTrainer):
    """SFT that stays close to the model it began with."""

    def __init__(self, *args, reference, **kwargs):
        super().__init__(*args, **kwargs)
        self.reference = reference

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(input_ids=inputs["input_ids"], labels=inputs["labels"])
            with torch.no_grad():
                q = self.reference(input_ids=inputs["input_ids"]).logits.half().softmax(-1)
            p = (12 * out.logits).half().softmax(-1, dtype=torch.float16)
            kl = (p * (p.log() - q.log())).sum(-1).mean()
        return out.loss + 0.01 * kl


torch.manual_seed(0)
config = GPT2Config(vocab_size=26, n_positions=32, n_embd=32, n_layer=1, n_head=2, initializer_range=0.4)
texts = [" ".join(str((start + i) % 24) for i in range(10)) for start in range(24)] * 4
args = SFTConfig(
    "sft", max_steps=8, per_device_train_batch_size=8, report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True, bf16=False, logging_steps=4, max_length=16,
)
KLTrainer(
    GPT2LMHeadModel(config), args, train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=make_tokenizer(), reference=GPT2LMHeadModel(config).eval(),
).train()
