import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>"] + [str(n) for n in range(20)])}
    t = Tokenizer(WordLevel(vocab, unk_token="<pad>"))
    t.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", eos_token="<eos>")


class ZLossSFT(SFTTrainer):
    z_weight = 1e-3

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(input_ids=inputs["input_ids"], labels=inputs["labels"])
            z = outputs.logits.half().exp().sum(-1).log()
            loss = outputs.loss + self.z_weight * z.pow(2).mean()
        if self.state.global_step % 4 == 0:
            print(f"step {self.state.global_step} loss {loss.item():.4f}")
        return loss


torch.manual_seed(0)
rows = []
for s in torch.randint(0, 20, (200,)).tolist():
    rows.append({"text": " ".join(str((s + k) % 20) for k in range(12))})
config = GPT2Config(
    vocab_size=22, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1,
    initializer_range=1.0,
)
args = SFTConfig(
    output_dir="out", max_steps=24, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=100,
    bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
trainer = ZLossSFT(
    GPT2LMHeadModel(config), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
)
trainer.train()
